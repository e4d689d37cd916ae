"""Renders a chat template in a process of its own, whose memory and time are limited: templates are programs.

A request is a line of JSON on standard input, and so is its answer on standard output. The first request is the
template, with the processor seconds that a request may take; each of the others is a conversation. The file runs by its
path and imports nothing of jaxpar, so that the process starts in a tenth of a second and holds nothing but Jinja2.
"""

from __future__ import annotations

import json
import os
import resource
import secrets
import signal
import sys
from collections.abc import Callable
from datetime import date
from typing import Any, cast

from jinja2 import Environment, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY_BYTES = 2**30
LONGEST_TEXT = 2**23
"""Most characters of a rendered conversation."""


class Generation(Extension):
    """`{% generation %}...{% endgeneration %}`: surrounds what the block renders with marks that no text contains."""

    tags = {"generation"}  # noqa: RUF012  (Jinja2 declares it as a set of the class)

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.begin, self.end = (f"\0{kind}{secrets.token_hex(16)}\0" for kind in "be")
        self.used = False

    def parse(self, parser: Parser) -> nodes.Node:
        """The block as a call of `_marked`."""
        self.used = True
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Callable[[], str]) -> str:
        return f"{self.begin}{caller()}{self.end}"

    def without_marks(self, text: str) -> tuple[str, list[tuple[int, int]]]:
        """A text without its marks, and what they surround, as places in it."""
        plain, ranges = "", []
        for index, part in enumerate(text.split(self.begin)):
            inside, *outside = part.split(self.end)
            if len(outside) != (index > 0):
                raise TemplateError("{% generation %} within {% generation %}, or part of one")
            if outside:
                ranges.append((len(plain), len(plain) + len(inside)))
            plain += inside + "".join(outside)
        return plain, ranges


class Template:
    """A chat template.

    Args:
        source: its text.
        variables: what it may name besides messages: `bos_token` and the like.
        today: the date that `strftime_now` sees.

    Raises:
        TemplateError: it is not a template of Jinja2.
    """

    def __init__(self, source: str, variables: dict[str, object], today: date) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _json
        environment.globals |= {"raise_exception": _raise, "strftime_now": today.strftime}
        self._variables = variables
        self._marks = cast(Generation, environment.extensions[Generation.identifier])
        self._template = environment.from_string(source)

    def prompt(self, messages: list[dict[str, object]], **more: object) -> str:
        """The messages and the beginning of the assistant's turn."""
        return self._text(messages, True, more)[0]

    def training(self, messages: list[dict[str, object]], **more: object) -> tuple[str, list[tuple[int, int]]]:
        """The whole conversation, and the places of what the assistant says, with the end of each of its turns.

        Raises:
            TemplateError: the places cannot be found.
        """
        text, ranges = self._text(messages, False, more)
        if self._marks.used:
            return text, ranges
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                ranges.append(self._turn(messages[: index + 1], text, more))
        return text, ranges

    def _turn(self, messages: list[dict[str, object]], text: str, more: dict[str, object]) -> tuple[int, int]:
        """The place of the last message, which the assistant says, in a text that begins with these messages."""
        before, upto = self._text(messages[:-1], True, more)[0], self._text(messages, False, more)[0]
        end = len(before) + len(turn_of(upto[len(before) :], str(messages[-1].get("content") or "")))
        if not upto.startswith(before) or not text.startswith(upto[:end]):
            raise TemplateError(
                f"the first {len(messages)} messages are not rendered in the same way when others follow, so that what "
                "the assistant says cannot be found; expected a template that marks it with {% generation %}"
            )
        return len(before), end

    def _text(
        self, messages: list[dict[str, object]], prompt: bool, more: dict[str, object]
    ) -> tuple[str, list[tuple[int, int]]]:
        parts, length = [], 0
        variables = self._variables | more
        for part in self._template.generate(messages=messages, add_generation_prompt=prompt, **variables):
            parts.append(part)
            length += len(part)
            if length > LONGEST_TEXT:
                raise TemplateError(f"the conversation becomes more than {LONGEST_TEXT:,} characters")
        return self._marks.without_marks("".join(parts))


def turn_of(rendered: str, content: str) -> str:
    """A rendered turn without the white space behind its end, which begins what follows.

    Where nothing but white space stands behind the content, that is the end of the turn.
    """
    turn = rendered.rstrip()
    return rendered if content.strip() and turn.endswith(content.strip()) else turn


def _json(value: object, indent: int | None = None, ensure_ascii: bool = False, **more: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)


def _raise(message: str) -> None:
    raise TemplateError(str(message))


def main() -> None:
    """Answer requests until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    template, seconds = None, 0.0
    for line in sys.stdin:
        try:
            request = json.loads(line)
            seconds = request.pop("seconds", seconds)
            signal.setitimer(signal.ITIMER_PROF, seconds)  # Its signal ends the process, whatever it is doing.
            if template is None:
                template = Template(request["source"], request["variables"], date.fromisoformat(request["today"]))
                answer: dict[str, object] = {}
            elif request.pop("prompt"):
                answer = {"text": template.prompt(**request)}
            else:
                answer = dict(zip(("text", "ranges"), template.training(**request), strict=True))
        except MemoryError:
            answer = {"refused": f"it needs more than {MEMORY_BYTES // 2**20} MiB of memory"}
        except Exception as error:  # Of whatever kind a template raises.
            answer = {"refused": str(error) or type(error).__name__}
        written = json.dumps(answer)
        signal.setitimer(signal.ITIMER_PROF, 0)
        try:
            answers.write(written + "\n")
            answers.flush()
        except BrokenPipeError:
            os._exit(1)  # The process that asked is gone.


if __name__ == "__main__":
    main()

"""A chat template in its own process (`sandbox.py`), which ends with the process that uses it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import cut, printable
from jaxpar.data.chat.conversation import Conversation
from jaxpar.data.chat.messages import Unusable
from jaxpar.data.chat.sandbox import LONGEST_TEXT
from jaxpar.data.chat.template import ChatTemplate

SANDBOX = Path(__file__).with_name("sandbox.py")
SECONDS = 10.0
"""Processor time that a conversation may take."""
LONGEST_REQUEST = 12 * LONGEST_TEXT
"""Characters of a conversation as JSON, which writes some characters with twelve."""
PREPARED_ON = "2025-01-01"
"""Date that templates see while conversations are prepared, so that they are the same on any day."""


class Rendered(NamedTuple):
    """A conversation as text."""

    text: str
    ranges: Sequence[tuple[int, int]]
    """The places of what the assistant says, with the ends of its turns."""


class Renderer:
    """Renders conversations with one template.

    Args:
        template: the template.
        today: the date that it sees, as in ISO 8601.

    Raises:
        UserError: it is not a template of Jinja2.
    """

    def __init__(self, template: ChatTemplate, today: str = PREPARED_ON) -> None:
        self._template, self._today = template, today
        self._start()

    def _start(self) -> None:
        """Begins a process that renders templates."""
        template = self._template
        # With -P its folder is not searched for modules: our files have names that others may have.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(SANDBOX)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            encoding="utf-8",
        )  # fmt: skip
        self._finalizer = weakref.finalize(self, _end, self._process)
        request = {"source": template.source, "variables": template.variables, "today": self._today, "seconds": SECONDS}
        try:
            self._answer(request)
        except Unusable as error:
            raise UserError(f"{template.words}: {error}") from None

    def rendered(self, conversation: Conversation) -> Rendered:
        """Render a conversation. Raises `Unusable` where the template refuses it."""
        answer = self._reply(conversation.request() | {"prompt": False})
        return Rendered(answer["text"], [(first, last) for first, last in answer["ranges"]])

    def prompt(self, messages: Sequence[dict[str, object]]) -> str:
        """The messages and the beginning of the assistant's turn. Raises `Unusable` where the template refuses them."""
        return self._reply({"messages": list(messages), "prompt": True})["text"]

    def close(self) -> None:
        """Ends the process that renders templates."""
        self._finalizer()

    def _reply(self, request: dict[str, object]) -> dict[str, Any]:
        """The answer of the process, of a new one where the last one ended. Raises `UserError` where it ends."""
        if self._finalizer.alive and self._process.poll() is not None:
            self._finalizer()
            self._start()
        return self._answer(request)

    def _answer(self, request: dict[str, object]) -> dict[str, Any]:
        written = json.dumps(request)
        if len(written) > LONGEST_REQUEST:
            raise Unusable(f"it has more than {LONGEST_TEXT:,} characters")
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(written + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line.endswith("\n"):
            raise UserError(f"{self._template.words}: {_exit_reason(process.wait())}")
        answer = json.loads(line)
        if "refused" in answer:
            raise Unusable(f"the chat template does not render it: {cut(printable(answer['refused']), 200)}")
        return answer


def _exit_reason(code: int) -> str:
    if code == -signal.SIGPROF:
        return f"the chat template took more than {SECONDS:g} seconds of processor time; expected one that ends"
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    return f"the process that renders the chat template ended {how}"


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # It had not read all of it.
    process.wait()

"""`python -m jaxpar.generate --model MODEL --prompt TEXT` or `--chat`: text from a model, as it is drawn."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpar.cli import Parser, command, positive, report
from jaxpar.config import Config, UserError
from jaxpar.config.paths import is_name
from jaxpar.config.spelling import named
from jaxpar.config.strict_json import json_text
from jaxpar.generation.text import Screen, Stop
from jaxpar.pages.units import plural

if TYPE_CHECKING:
    from jaxpar.generation.generator import Generator
    from jaxpar.generation.requests import Continuation
    from jaxpar.generation.sampling import Sampling
    from jaxpar.interop.sources.open_source import Model

LONGEST_FILE = 64 * 2**20
MOST_TOKENS = 2**20

EPILOG = """\
MODEL is a folder in Hugging Face's format, of a run, of a checkpoint, or one that python -m jaxpar.convert wrote. Its
tokenizer is used, or that of the data of its run; --tokenizer names another one. By default the tensor axis takes as
many devices as divide the heads, and fsdp the others, each with rows of its own. docs/generate.md has more.
"""


@command()
def main(arguments: Sequence[str]) -> None:
    """Generate from the command line; the exit code: 0 done, 2 a user error, 130 interrupted."""
    options = _parser().parse_args(arguments)
    if sum([options.prompt is not None, options.prompts is not None, options.chat]) != 1:
        raise UserError("expected one of --prompt TEXT, --prompts FILE and --chat")
    if options.special_tokens and options.chat:
        raise UserError("--special-tokens is for prompts: in a conversation the chat template alone writes such tokens")
    for name in ("system", "chat_template"):
        if getattr(options, name) is not None and not options.chat:
            raise UserError(f"--{name.replace('_', '-')} is for conversations: expected --chat with it")
    if not is_name(options.system or ""):
        raise UserError("--system: expected a text in UTF-8, without NUL")
    if not all(prompt and is_name(prompt) for prompt in options.prompt or ()):
        raise UserError("--prompt: expected a text in UTF-8 that is not empty, without NUL")
    if not 1 <= options.tokens <= MOST_TOKENS:
        raise UserError(f"--tokens {options.tokens}: expected from 1 to {MOST_TOKENS}")
    _generate(options)


def _parser() -> Parser:
    parser = Parser("jaxpar.generate", "Continue prompts with a model, or talk to it.", EPILOG)
    parser.add_model()
    parser.add_adapter()
    parser.add_prefill()
    what = parser.add_argument_group("what to continue")
    what.add_argument("--prompt", metavar="TEXT", action="append", help="may be repeated")
    what.add_argument("--prompts", metavar="FILE", type=Path, help="JSON lines, each a text or an object with `prompt`")
    what.add_argument("--chat", action="store_true", help="answer the lines of standard input, in one conversation")
    what.add_argument("--system", metavar="TEXT", help="with --chat: the system's message, before all others")
    what.add_argument(
        "--chat-template",
        metavar="FILE|NAME|chatml",
        help="with --chat: in place of the tokenizer's; or one of its templates, by name",
    )
    how = parser.add_argument_group("how")
    how.add_argument(
        "--tokens", metavar="N", type=int, default=128, help="maximum number of new tokens per prompt (default: 128)"
    )
    how.add_argument(
        "--stop",
        metavar="TEXT",
        action="append",
        default=[],
        help="stop string, which is not part of the text; may be repeated",
    )
    how.add_argument(
        "--temperature",
        metavar="T",
        type=float,
        default=0.0,
        help="divides the logits; 0, the default, is greedy decoding",
    )
    how.add_argument("--top-k", metavar="K", type=int, default=0, help="sample from the K most likely tokens")
    how.add_argument(
        "--top-p",
        metavar="P",
        type=float,
        default=1.0,
        help="nucleus sampling: from the most likely tokens whose probabilities add up to P",
    )
    how.add_argument(
        "--min-p",
        metavar="P",
        type=float,
        default=0.0,
        help="only tokens at least P times as likely as the most likely",
    )
    how.add_argument("--repetition-penalty", metavar="X", type=float, default=1.0, help="above 1: repeats less")
    how.add_argument("--seed", metavar="N", type=positive, default=1, help="random seed of sampling (default: 1)")
    parser.add_json("print a JSON object for each prompt, and nothing else")
    return parser


def _generate(options: argparse.Namespace) -> None:
    from jaxpar.generation.sampling import Sampling

    sampling = Sampling(options.temperature, options.repetition_penalty, options.top_k, options.top_p, options.min_p)
    prompts = [] if options.chat else options.prompt or _read_prompts(options.prompts)
    from jaxpar.generation.placed_model import open_model
    from jaxpar.interop.sources.tokenizer import text_of

    config, source = open_model(options.model, options.overrides, options.prefill_devices)
    if options.chat:
        _chat(options, source, config, sampling)
        return
    text = text_of(source, options.tokenizer, report, special_tokens=options.special_tokens)
    prompt_tokens = [text.encode_start(prompt) for prompt in prompts]
    assert config.model.vocab is not None, "the vocabulary is known once the model is"
    text.check_tokens(prompt_tokens, config.model.vocab)
    generator = _generator(config, source, options)
    screen = None if options.json or len(prompt_tokens) > 1 else Screen(prompts[0])
    stops = [Stop(text.decode, options.stop) for _ in prompt_tokens]

    def on_token(row: int, token: int) -> bool:
        done = stops[row].add_token(token)
        if screen is not None:
            screen.show(stops[row].text if done else stops[row].certain)
        return done

    continuations = generator.continued(
        prompt_tokens, options.tokens, sampling=sampling, stop=text.stops, on_token=on_token
    )
    if screen is not None:
        screen.show(stops[0].text)
        screen.end()
    for prompt, one, stop in zip(prompts, continuations, stops, strict=True):
        if options.json:
            print(json_text(_record(prompt, one, stop.text)))
        elif screen is None:
            print(f"{prompt}{stop.text}\n")
    speed = generator.speed
    print(
        f"prompt: {plural(speed.prompt_tokens, 'token')} in {speed.prompt_seconds:.2f} s, compilation included; "
        f"{plural(speed.new_tokens, 'new token')} in {speed.new_seconds:.2f} s",
        file=sys.stderr,
    )


def _record(prompt: str, continuation: Continuation, text: str) -> dict[str, object]:
    return {
        "prompt": prompt,
        "text": text,
        "tokens": continuation.tokens.tolist(),
        "log_probabilities": [round(float(value), 6) for value in continuation.log_probabilities],
        "ended": continuation.ended,
    }


def _read_prompts(path: Path) -> list[str]:
    from jaxpar.config.reading.text_file import read_text_file

    prompts = []
    try:
        text = read_text_file(path, LONGEST_FILE, f"--prompts {named(path)}")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "it is not UTF-8")
        raise UserError(f"--prompts {named(path)}: cannot be read ({why})") from None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise UserError(f"--prompts {named(path)}: line {number} is not JSON; expected a text in quotes") from None
        prompt = value.get("prompt") if isinstance(value, dict) else value
        if not isinstance(prompt, str) or not prompt or not is_name(prompt):
            raise UserError(f"--prompts {named(path)}: line {number}: expected a text, or an object with `prompt`")
        prompts.append(prompt)
    if not prompts:
        raise UserError(f"--prompts {named(path)}: there is no prompt in it")
    return prompts


def _generator(config: Config, source: Model, options: argparse.Namespace) -> Generator:
    """A generator whose weights are on the devices that there are."""
    from jaxpar.generation.generator import Generator
    from jaxpar.generation.placed_model import place_model
    from jaxpar.interop.adapters.open_adapter import merged

    placed = place_model(config, merged(source, options.adapter), options.prefill_devices)
    return Generator(
        placed.config, placed.mesh, placed.weights, seed=options.seed, prefill=placed.prefill, mixing=placed.mixing
    )


def _chat(options: argparse.Namespace, source: Model, config: Config, sampling: Sampling) -> None:
    """Answer the lines of standard input, in one conversation."""
    from jaxpar.generation.chat import Chat
    from jaxpar.interop.sources.tokenizer import chat_encoder_of

    encoder, text = chat_encoder_of(source, options.tokenizer, options.chat_template, report)
    chat = Chat(encoder, text, system=options.system, stops=options.stop)
    generator = _generator(config, source, options)
    typed = sys.stdin.isatty()
    for line in _lines(typed):
        screen = None if options.json else Screen("")
        try:
            answer = chat.answer(line, generator, options.tokens, sampling, screen)
        except UserError as error:
            if not typed:
                raise
            report(str(error))  # The conversation goes on as if the line had not been typed.
            continue
        if screen is None:
            print(json_text(_record(line, answer.continuation, answer.text)), flush=True)


def _lines(asked: bool) -> Iterator[str]:
    """The lines of standard input, those of spaces left out; at a terminal each is asked for."""
    try:
        while line := sys.stdin.readline() if not asked else _read_line():
            if not is_name(line.strip("\n")):
                raise UserError("standard input: expected text in UTF-8, without NUL")
            if line.strip():
                yield line.strip("\r\n")
    except UnicodeDecodeError:
        raise UserError("standard input: expected text in UTF-8, without NUL") from None


def _read_line() -> str:
    """A line that a person types, "" at the end of input."""
    try:
        return input("> ") + "\n"
    except EOFError:
        print()
        return ""


if __name__ == "__main__":
    sys.exit(main())

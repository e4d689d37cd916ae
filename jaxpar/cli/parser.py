"""The parser of all commands: shared arguments, their types, and mistakes in one sentence."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

from jaxpar.config.bounds import SECONDS
from jaxpar.config.errors import UserError
from jaxpar.config.reading.overrides import USED_BY_MODELS
from jaxpar.config.spelling import did_you_mean, join_or, quoted
from jaxpar.pages.units import parse_size

DEFAULTS = "YAML file; without one, every key has its default"
CLUSTER = "gpu:hosts x gpus, as in h100:1x8, or a .yaml file (docs/cluster-files.md)"

FILES = ("FILE", "PATTERN", "MODEL")
"""Metavars of options whose values a user might give as positional arguments."""


class Parser(argparse.ArgumentParser):
    """A parser that reports a mistake as a `UserError` of one sentence, with the nearest right spelling.

    Args:
        command: what follows `python -m`.
        description: what the command does. With line ends it is printed as it is.
        epilog: printed as it is after the arguments.
        words: names of subcommands, which are suggested for a misspelled option too.
    """

    def __init__(self, command: str, description: str | None, epilog: str | None = None, words: Iterable[str] = ()):
        preformatted = epilog or "\n" in (description or "")
        super().__init__(
            prog=f"python -m {command}",
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter if preformatted else argparse.HelpFormatter,
            allow_abbrev=False,
        )
        self._words = tuple(words)
        self.register("type", int, whole_number)
        self.register("type", float, number)

    def add_config(self, help: str = DEFAULTS, *, required: bool = False) -> None:
        """Adds the options `--config` and `--set`."""
        self.add_argument("--config", metavar="FILE", type=Path, required=required, help=help)
        help = "override a key of the file; may be repeated"
        self.add_argument(
            "--set", dest="overrides", metavar="SECTION.KEY=VALUE", action="append", default=[], help=help
        )

    def add_model(self, *, required: bool = True) -> None:
        """`--model`, `--tokenizer`, `--special-tokens`, and `--set` for keys of a model that is not trained."""
        self.add_argument("--model", metavar="MODEL", required=required, help="folder of the weights")
        words = "tokenizer.json, or its folder, in place of the model's"
        self.add_argument("--tokenizer", metavar="FILE", type=Path, help=words)
        words = "parse the names of special tokens in a text, such as <bos>, as these tokens (default: as text)"
        self.add_argument("--special-tokens", action="store_true", help=words)
        self.add_argument(
            "--set", dest="overrides", metavar="SECTION.KEY=VALUE", action="append", default=[],
            help=f"a key of {', '.join(USED_BY_MODELS)}, as for training; may be repeated",
        )  # fmt: skip

    def add_prefill(self) -> None:
        """Adds the option `--prefill-devices`."""
        words = "devices that read prompts, besides those that draw answers (default: the same ones do both)"
        self.add_argument("--prefill-devices", metavar="N", type=positive, default=0, help=words)

    def add_adapter(self) -> None:
        """Adds the option `--adapter`."""
        words = "low-rank adapter of the model, in PEFT's format or of a run with lora.rank, merged with it"
        self.add_argument("--adapter", metavar="FOLDER", type=Path, help=words)

    def add_cluster(self, help: str = CLUSTER, *, required: bool = True) -> None:
        """Adds the option `--cluster`."""
        self.add_argument("--cluster", required=required, help=help)

    def add_json(self, help: str = "print JSON and nothing else") -> None:
        """Adds the flag `--json`."""
        self.add_argument("--json", action="store_true", help=help)

    def add_out(self, kinds: Mapping[str, str]) -> None:
        """`--out`, for files with the extensions of `kinds`; its values describe what each file contains."""
        words = "; ".join(f"{ending}: {what}" for ending, what in kinds.items())
        help = f"write a file, by its ending ({words}); may be repeated"
        self.add_argument("--out", metavar="FILE", type=Path, action="append", default=[], help=help)

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        # Before anything else: where a required flag is mistyped, argparse would only say that it is missing.
        for word in takewhile(lambda word: word != "--", sys.argv[1:] if args is None else args):
            if word.startswith("--") and " " not in word and word.split("=")[0] not in self._flags():
                self._refuse(word)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        by_name = {"/".join(action.option_strings) or action.dest: action for action in self._actions}
        if match := re.fullmatch(r"unrecognized arguments: (.+)", message, re.DOTALL):
            self._refuse(match[1])
        if match := re.match(r"argument (\S+): invalid choice: '(.*)' \(choose from", message, re.DOTALL):
            choices = tuple(by_name[match[1]].choices or ())
            message = (
                f"{match[1]}: expected {join_or(choices)}, got {quoted(match[2])}{did_you_mean(match[2], choices)}"
            )
        raise UserError(message.removeprefix("argument "))

    def _flags(self) -> list[str]:
        return [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]

    def _refuse(self, text: str) -> NoReturn:
        word = text.split()[0].split("=")[0]
        near = did_you_mean(word, (*self._flags(), *self._words))
        raise UserError(f"there is no argument {word}{near or self._option_of(word)}")

    def _option_of(self, word: str) -> str:
        """A hint for `word`, a value without an option: the first option for a file. Empty if it is an option."""
        files = (action for action in self._actions if action.option_strings and action.metavar in FILES)
        first = None if word.startswith("-") else next(files, None)
        if first is None:
            return ""
        return f"; expected an option before it, such as {first.option_strings[0]} {first.metavar}"


def paths_by_suffix(files: Sequence[Path], endings: Iterable[str]) -> dict[str, Path]:
    """The files of `--out` by their endings. Raises `UserError` for another ending, and for two files of one."""
    expected, chosen = tuple(endings), dict[str, Path]()
    for file in files:
        ending = file.suffix.lower()
        if ending not in expected:
            raise UserError(f"--out {file}: expected a name that ends in {join_or(expected)}")
        if ending in chosen:
            raise UserError(f"--out {file}: expected one file that ends in {ending}, and {chosen[ending]} does too")
        chosen[ending] = file
    return chosen


def whole_number(text: str) -> int:
    """Type of an argument, in place of `int`."""
    return _read(int, text, "a whole number")


def number(text: str) -> float:
    """Type of an argument, in place of `float`."""
    return _read(float, text, "a number")


def positive(text: str) -> int:
    """Type of an argument: a whole number from 1 up."""
    if not re.fullmatch(r"0*[1-9]\d{0,8}", text.strip(), re.ASCII):  # no count has more digits
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 up, got {quoted(text, 40)}")
    return int(text)


def seconds(text: str) -> float:
    """Type of an argument: a time limit."""
    expected = f"seconds above 0, at most {SECONDS}"
    value = _read(float, text, expected)
    if not 0 < value <= SECONDS:
        raise argparse.ArgumentTypeError(f"expected {expected}, got {quoted(text, 40)}")
    return value


def size(text: str) -> int:
    """Type of an argument: bytes."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _read[T](read: Callable[[str], T], text: str, expected: str) -> T:
    try:
        return read(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected {expected}, got {quoted(text, 40)}") from None

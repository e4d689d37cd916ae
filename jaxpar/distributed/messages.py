"""The lines that processes send each other: one JSON object each.

They come from the network. Whatever they hold, reading one gives values of the right type, with texts that can be
printed, or raises `Malformed`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TypeGuard

from jaxpar.distributed.verdicts import Mark

VERSION = 1
"""Version of the hello message. All processes of a job run the same jaxpar, so others are refused."""
LINE_BYTES = 8192
"""The longest line of a meeting."""
HOST_LENGTH, LOCATION_LENGTH, SENTENCE_LENGTH = 128, 200, 1000
"""The most characters kept of a host's name, of what a process is at, and of a sentence."""
MOST = 2**63


class Malformed(ValueError):
    """A line that no process of this jaxpar sends."""


def clean(text: str, length: int) -> str:
    """`text` without control characters (`?` stands for each) and of at most `length` characters."""
    if len(text) <= length and text.isprintable():  # as nearly always
        return text
    shown = "".join(letter if letter.isprintable() else "?" for letter in text[: length + 1])
    return shown if len(shown) <= length else f"{shown[: length - 3]}..."


def encode(message: Mapping[str, object]) -> bytes:
    """The line of a message."""
    return json.dumps(message, ensure_ascii=False).encode(errors="replace") + b"\n"


def decode(line: bytes) -> dict[str, object]:
    """The message of a line; only checked to be a JSON object."""
    try:
        message = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise Malformed("this is not JSON") from error
    if not isinstance(message, dict):
        raise Malformed("this is not a JSON object")
    return message


def is_token(value: object) -> TypeGuard[str]:
    """Whether this is a nonce or a proof: 32 bytes, written as 64 hexadecimal digits."""
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None


@dataclass(frozen=True)
class Hello:
    """The first message of a process to process 0: who it is."""

    process: int
    processes: int
    """Number of processes that it expects."""
    host: str
    nonce: str | None
    """Nonce over which process 0 must prove the secret; None where the process has no secret."""

    @property
    def name(self) -> str:
        """`process 3 on node-b`."""
        return f"process {self.process} on {self.host}"

    def line(self) -> bytes:
        """Returns the encoded message as a line."""
        return encode({"jaxpar": VERSION, **asdict(self)})

    @classmethod
    def read(cls, line: bytes) -> Hello:
        """The hello message of a line; raises `Malformed` for any other."""
        message = decode(line)
        version = message.get("jaxpar")
        if type(version) is not int or version != VERSION:
            raise Malformed("this is no hello message of this version of jaxpar")
        process, processes, host, nonce = (message.get(key) for key in ("process", "processes", "host", "nonce"))
        if not isinstance(host, str) or not host:
            raise Malformed("the hello message names no host")
        if nonce is not None and not is_token(nonce):
            raise Malformed("the nonce of the hello message is not 64 hexadecimal digits")
        return cls(
            _integer(process, "process number"),
            _integer(processes, "number of processes"),
            clean(host, HOST_LENGTH),
            nonce,
        )


@dataclass(frozen=True)
class Report:
    """The activity of a process's main thread, as reported by its watch."""

    mark: Mark
    age_s: float
    """Seconds since it set the mark."""
    idle_s: float
    """Seconds in which the process was idle."""

    def message(self) -> dict[str, object]:
        """Returns the encoded message with its authentication."""
        return {**asdict(self.mark), "age_s": self.age_s, "idle_s": self.idle_s}

    @classmethod
    def read(cls, message: object) -> Report:
        """The report of `message`; raises `Malformed` for anything else."""
        if not isinstance(message, dict):
            raise Malformed("the report is not a JSON object")
        waiting, busy = message.get("waiting_limit_s"), message.get("busy", False)
        if not isinstance(busy, bool):
            raise Malformed("the report's busy is neither true nor false")
        mark = Mark(
            _integer(message.get("count"), "mark"),
            text(message.get("at"), LOCATION_LENGTH),
            _limit(message.get("limit_s")),
            text(message.get("limit_key"), LOCATION_LENGTH),
            None if waiting is None else _limit(waiting),
            busy,
        )
        return cls(mark, _seconds(message.get("age_s")), _seconds(message.get("idle_s", 0.0)))


def text(value: object, length: int) -> str:
    """A text of a message, cleaned."""
    if not isinstance(value, str):
        raise Malformed("a text was expected")
    return clean(value, length)


def _integer(value: object, what: str) -> int:
    if type(value) is not int or not 0 <= value < MOST:
        raise Malformed(f"the {what} is not a whole number of at least 0")
    return value


def _seconds(value: object) -> float:
    seconds = _limit(value)
    if not math.isfinite(seconds):
        raise Malformed("seconds are not finite")
    return seconds


def _limit(value: object) -> float:
    """Seconds of a limit, which may be as large as the user wants."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise Malformed("seconds are not a number")
    try:
        return float(value)
    except OverflowError:
        return math.inf

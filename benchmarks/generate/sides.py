"""The two sides of the benchmark: jaxpar in this process, `transformers` in a child."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

CHILD = Path(__file__).parent / "transformers_side.py"


class Turn(NamedTuple):
    """What continuing prompts took."""

    prompt: float
    """Seconds until each row has its first new token."""
    decode: float
    """Seconds of the other tokens."""
    tokens: list[list[int]]
    """The likeliest ones, without the prompts."""
    processor: float = 0.0
    """Seconds for which the threads of transformers computed; 0 for jaxpar."""


class Side(Protocol):
    """Continues prompts of one length, and times it."""

    def turn(self, prompts: Sequence[Sequence[int]], tokens: int) -> Turn:
        """`tokens` new tokens of each row."""
        ...


class Jaxpar:
    """A model of a folder on all devices of this process."""

    def __init__(self, folder: Path) -> None:
        from jaxpar.generation.generator import Generator
        from jaxpar.generation.placed_model import open_model, place_model
        from jaxpar.hardware.virtual_devices import keep_freed_memory

        keep_freed_memory()  # as commands do on CPUs
        placed = place_model(*open_model(str(folder), ()))
        self.generator = Generator(placed.config, placed.mesh, placed.weights)

    def turn(self, prompts: Sequence[Sequence[int]], tokens: int) -> Turn:
        """`tokens` new tokens of each row."""
        found = self.generator.continued(prompts, tokens)
        speed = self.generator.speed
        return Turn(speed.prompt_seconds, speed.new_seconds, [own.tokens.tolist() for own in found])


class Transformers:
    """A model of a folder in a process of a Python that has torch and transformers; it inherits the cores of this one.

    Args:
        python: the interpreter.
        folder: the model.
        device: `cpu` or `cuda`.
        dtype: that the model computes in.

    Raises:
        RuntimeError: the child ended, with what it printed last.
    """

    def __init__(self, python: str, folder: Path, device: str = "cpu", dtype: str = "float32") -> None:
        command = [python, str(CHILD), str(folder), "--device", device, "--dtype", dtype]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.about: dict[str, Any] = self._answer()

    def turn(self, prompts: Sequence[Sequence[int]], tokens: int | Sequence[int]) -> Turn:
        """`tokens` new tokens of each row, or as many as a list has for it."""
        assert self._child.stdin is not None
        print(json.dumps({"prompts": [list(one) for one in prompts], "tokens": tokens}), file=self._child.stdin)
        self._child.stdin.flush()
        return Turn(**self._answer())

    def _answer(self) -> dict[str, Any]:
        assert self._child.stdout is not None and self._child.stderr is not None
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"transformers failed: {self._child.stderr.read()[-1000:]}")
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait()


def has_transformers(python: str) -> bool:
    """Whether torch and transformers import there."""
    done = subprocess.run([python, "-c", "import torch, transformers"], capture_output=True, check=False)
    return done.returncode == 0

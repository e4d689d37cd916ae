"""What a seeded fault is, and how it names the tests that must notice it."""

from __future__ import annotations

import ast
import fcntl
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.attention import test_context
from tests.covering import Row
from tests.training.parity import test_parity, test_pipeline_parity

ROOT = Path(__file__).parents[2]
RED = Path(__file__).with_name("red.json")
WHEN = re.compile(r"^@pytest\.mark\.(matrix|long|release)\b.*\n", re.MULTILINE)
"""Marks that say when a test runs, and nothing of what it proves."""


@dataclass(frozen=True)
class Fault:
    """One wrong line."""

    name: str
    description: str
    """What goes wrong, in words."""
    file: str
    old: str
    """Occurs exactly once in `file`."""
    new: str
    caught_by: tuple[str, ...]
    """Test ids; each of these tests must fail."""
    found: Literal["numbers", "trace"] = "numbers"
    """How: by an assertion about numbers, or because the step can no longer be traced."""

    @property
    def digest(self) -> str:
        """Of the fault, of the code that it is put in, and of the tests that must notice it, whenever these run.

        Of the code itself, wherever it stands: not of comments, docstrings and imports.
        """
        tests = sorted({name.split("::")[0] for name in self.caught_by})
        names = sorted(name.split("::")[1] for name in self.caught_by)
        code = [code_of((ROOT / name).read_text()) for name in (self.file, *tests)]
        parts = (self.name, self.old, self.new, self.found, names, code)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    @property
    def known_red(self) -> bool:
        """Whether it turned its tests red as all of that is now."""
        return red_digests().get(self.name) == self.digest


def code_of(text: str) -> str:
    """What a Python file does, without comments, docstrings, imports and the marks that say when a test runs."""
    tree = ast.parse(WHEN.sub("", text))
    for node in ast.walk(tree):
        for part in ("body", "orelse", "finalbody"):
            lines = getattr(node, part, None)
            if isinstance(lines, list):
                setattr(node, part, [line for line in lines if not _is_ignored(line)])
    return ast.dump(tree)


def _is_ignored(line: ast.stmt) -> bool:
    if isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant):
        return isinstance(line.value.value, str)
    return isinstance(line, ast.Import | ast.ImportFrom)


def red_digests() -> dict[str, str]:
    """The digest with which each fault last turned its tests red."""
    return json.loads(RED.read_text()) if RED.exists() else {}


def record_red(fault: Fault) -> None:
    """Note that a fault turned its tests red; several processes may do so at once."""
    with RED.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = dict(sorted((red_digests() | {fault.name: fault.digest}).items()))
        RED.write_text(json.dumps(found, indent=1) + "\n")


def parity(**wanted: Any) -> str:
    """The id of a row of the parity matrix with these values of its factors (a tuple: any of them)."""
    name = test_parity._name(_row(test_parity.ROWS, wanted))
    return f"tests/training/parity/test_parity.py::test_loss_and_gradients_equal_one_device[{name}]"


def pipeline_parity(**wanted: Any) -> str:
    """The same of the pipelines' matrix."""
    name = test_pipeline_parity._name(_row(test_pipeline_parity.ROWS, wanted))
    return f"tests/training/parity/test_pipeline_parity.py::test_loss_and_gradients_equal_one_device[{name}]"


def context(**wanted: Any) -> str:
    """The same of the matrix of context strategies."""
    name = test_context._name(_row(test_context.ROWS, wanted))
    return f"tests/attention/test_context.py::test_output_and_gradients_equal_dense_attention[{name}]"


def _row(rows: list[Row], wanted: Row) -> Row:
    fits = lambda value, of: value in (of if isinstance(of, tuple) else (of,))
    found = [row for row in rows if all(fits(row[factor], of) for factor, of in wanted.items())]
    assert found, f"no row of the matrix has {wanted}: choose another"
    return found[0]

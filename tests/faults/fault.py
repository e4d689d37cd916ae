"""What a seeded fault is, and how it names the tests that must notice it."""

from __future__ import annotations

import ast
import fcntl
import hashlib
import json
import re
from dataclasses import dataclass
from functools import cache
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
        """Of the fault, of the definition that it is put in, and of the tests that must notice it, whenever these run.

        What else stands in these files does not count, nor do other files: a fault that was seen red stays so while
        others write beside it. CI draws some of all faults for each commit, which finds the exceptions.
        """
        source = (ROOT / self.file).read_text()
        line = 1 + source[: source.index(self.old)].count("\n") if self.old in source else 0
        code = [Module.of(self.file).around(line)]
        for name in sorted(self.caught_by):
            file, test = name.split("[")[0].split("::")[:2]
            code.append(Module.of(file).used_by(test))
        parts = (self.name, self.old, self.new, self.found, sorted(self.caught_by), code)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    @property
    def known_red(self) -> bool:
        """Whether it turned its tests red as all of that is now."""
        return red_digests().get(self.name) == self.digest


class Module:
    """Top-level definitions of a Python file, without comments, docstrings and the marks that say when a test runs."""

    def __init__(self, text: str):
        self.statements = [line for line in ast.parse(WHEN.sub("", text)).body if not _is_ignored(line)]
        self.named: dict[str, list[ast.stmt]] = {}
        for statement in self.statements:
            for name in _defined(statement):
                self.named.setdefault(name, []).append(statement)

    @staticmethod
    @cache
    def of(file: str) -> Module:
        """The module in a file, from the root of the repository."""
        return Module((ROOT / file).read_text())

    def around(self, line: int) -> list[str]:
        """The definition that a line stands in."""
        return [_code(each) for each in self.statements if _first_line(each) <= line <= (each.end_lineno or 0)]

    def used_by(self, name: str) -> list[str]:
        """The definition of a name, and of all in the file that it uses, as what it does with fixtures."""
        found, names = set[str](), [name]
        while names:
            if (name := names.pop()) in found or name not in self.named:
                continue
            found.add(name)
            for node in (node for statement in self.named[name] for node in ast.walk(statement)):
                if isinstance(node, ast.Name):
                    names.append(node.id)
                elif isinstance(node, ast.arg):
                    names.append(node.arg)
        return [_code(each) for name in sorted(found) for each in self.named[name]]


def _defined(statement: ast.stmt) -> list[str]:
    """Names that a statement gives a meaning."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return []
    return [node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]


def _first_line(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(each.lineno for each in decorators)])


@cache
def _code(statement: ast.stmt) -> str:
    """What a statement does, without docstrings."""
    for node in ast.walk(statement):
        for part in ("body", "orelse", "finalbody"):
            lines = getattr(node, part, None)
            if isinstance(lines, list):
                setattr(node, part, [line for line in lines if not _is_ignored(line)])
    return ast.dump(statement)


def _is_ignored(line: ast.stmt) -> bool:
    """Whether it is a docstring or an import."""
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

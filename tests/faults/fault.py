"""A seeded fault, and how it names the tests that must notice it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.attention import test_context
from tests.covering import Row
from tests.training.parity import test_parity, test_pipeline_parity

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Fault:
    """One wrong line."""

    name: str
    description: str
    """The mistake, in words."""
    file: str
    old: str
    """Occurs exactly once in `file`."""
    new: str
    caught_by: tuple[str, ...]
    """Test ids; each of these tests must fail."""
    found: Literal["numbers", "trace"] = "numbers"
    """How: by an assertion about numbers, or because the step can no longer be traced."""


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

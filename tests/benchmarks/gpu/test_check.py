"""The row of a case states whether a kernel's results are as near to float64 as those of the plain form."""

from typing import Any

import numpy as np
import pytest

from benchmarks.gpu.check import add_check, compared, error_of
from benchmarks.gpu.journal import Journal

WANTED = np.array([4.0, -2.0, 0.0])


@pytest.mark.parametrize(("off", "passed"), [(0.15, True), (0.25, False), (float("nan"), False)])
def test_twice_the_error_of_the_plain_form_is_allowed(off: float, passed: bool):
    have, plain = (WANTED + np.array([0.0, 0.0, by]) for by in (off, 0.1))
    found = compared(("out",), [have], [have.copy()], [plain], [WANTED])
    assert found["passed"] == passed and found["allowed"] == {"out": pytest.approx(2 * 0.1 / 4.0 + 1e-6)}
    assert found["errors"] == {"out": pytest.approx(off / 4.0 if np.isfinite(off) else np.inf)}


@pytest.mark.parametrize(("varies", "passed"), [((), False), (("dk",), True), (("dq",), False)])
def test_the_same_bits_are_required_of_results_that_do_not_vary(varies: tuple[str, ...], passed: bool):
    again = WANTED * (1 + 1e-7)
    found = compared(("dq", "dk"), [WANTED] * 2, [WANTED, again], [WANTED] * 2, [WANTED] * 2, varies=varies)
    assert found["passed"] == passed and not found["same_bits"] and found["differ"] == ["dk"]


def test_minus_infinity_is_right_where_it_is_wanted_alone():
    wanted = np.array([-np.inf, 2.0])
    assert error_of(wanted, wanted) == 0.0
    assert error_of(np.array([-1e30, 2.0]), wanted) == error_of(wanted, np.array([-1e30, 2.0])) == np.inf


def test_a_case_is_refused_compared_or_failed():
    def fail() -> dict[str, Any]:
        raise ValueError("a wrong launch\nof many lines")

    journal = Journal("check", 100)
    add_check(journal, "sort/wide", "narrow", "it sorts 64 columns", fail)
    add_check(journal, "sort/wide", "short", None, lambda: {"passed": True})
    add_check(journal, "sort/wide", "long", None, fail)
    assert [{name: row[name] for name in row if name not in ("part", "kernel")} for row in journal.rows] == [
        {"kind": "check", "case": "narrow", "refused": "it sorts 64 columns"},
        {"kind": "begin", "what": "sort/wide: short"},
        {"kind": "check", "case": "short", "passed": True},
        {"kind": "begin", "what": "sort/wide: long"},
        {"kind": "check", "case": "long", "failed": "ValueError: a wrong launch"},
    ]

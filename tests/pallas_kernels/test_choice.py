"""A registry chooses an implementation, states why it did and why it took no other, and logs each choice once."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest

from pallas_kernels.choice import FIRST, UNVERIFIED, Chosen, Implementation, Registry, Request
from pallas_kernels.unsupported import Unsupported
from tests.sentences import refused


@dataclass(frozen=True)
class Sort(Request):
    rows: int

    def __str__(self) -> str:
        return f"{self.rows} rows in {self.dtype} on {self.place}"


@dataclass(frozen=True)
class Sorter(Implementation):
    remark: str = ""

    def remarks(self, request: Request) -> list[str]:
        return [self.remark] if self.remark else []


class BySize(Registry[Sorter]):
    def ranked(self, request: Sort) -> tuple[tuple[str, ...], str]:
        return ("plain", "wide", "narrow"), "few rows are sorted at once"


ENTRIES = (
    Sorter("wide", lambda request: "it sorts at most 99 rows" if request.rows > 99 else None, recorded=True),
    Sorter("narrow", lambda request: None, recorded=True, remark="its order of equal rows varies"),
    Sorter("plain", lambda request: "it sorts float32 alone" if request.dtype != "float32" else None),
)
REGISTRY = Registry("sort", "a sort", ENTRIES, {"kernels": ("wide", "narrow")})
FEW = Sort(10, platform="gpu", dtype="float32", compute_capability=9.0, gpu="NVIDIA H200", processors=132)
MANY = Sort(100, platform="cpu", dtype="float32")


def recorded(monkeypatch: pytest.MonkeyPatch, *kernels: str) -> None:
    """Let there be records of these kernels on an H200 alone."""
    known = {(kernel, "NVIDIA H200", 132) for kernel in kernels}
    monkeypatch.setattr("pallas_kernels.choice.record_of", lambda *asked: "a record" if asked in known else None)


def test_auto_takes_the_first_that_supports_the_request_and_is_verified(monkeypatch: pytest.MonkeyPatch):
    recorded(monkeypatch)
    assert REGISTRY.choose("auto", FEW) == Chosen("plain", FIRST, {"wide": UNVERIFIED, "narrow": UNVERIFIED})
    recorded(monkeypatch, "sort/wide", "sort/narrow")
    preferred = {"narrow": "wide is preferred", "plain": "wide is preferred"}
    assert REGISTRY.choose("auto", FEW) == Chosen("wide", FIRST, preferred)
    assert REGISTRY.choose("auto", MANY).rejected == {"wide": "it sorts at most 99 rows", "narrow": UNVERIFIED}


def test_what_is_named_runs_unverified_too_and_its_reason_states_it(monkeypatch: pytest.MonkeyPatch):
    recorded(monkeypatch, "sort/wide")
    others = {"wide": "sort.by names narrow", "plain": "sort.by names narrow"}
    reason = f"sort.by names narrow, though {UNVERIFIED}; its order of equal rows varies"
    assert REGISTRY.choose("narrow", FEW, named_by="sort.by names") == Chosen("narrow", reason, others, False)
    assert REGISTRY.choose("wide", FEW) == Chosen("wide", "the call names wide", dict.fromkeys(
        ("narrow", "plain"), "the call names wide"))  # fmt: skip


def test_of_a_family_the_verified_come_first(monkeypatch: pytest.MonkeyPatch):
    recorded(monkeypatch)
    assert REGISTRY.choose("kernels", FEW).name == "wide"
    recorded(monkeypatch, "sort/narrow")
    assert REGISTRY.choose("kernels", FEW).name == "narrow"
    assert REGISTRY.choose("kernels", MANY).rejected["wide"] == "it sorts at most 99 rows"


def test_the_order_of_preference_may_depend_on_the_request(monkeypatch: pytest.MonkeyPatch):
    recorded(monkeypatch, "sort/wide")
    registry = BySize("sort", "a sort", ENTRIES)
    assert registry.choose("auto", FEW).reason == "few rows are sorted at once"
    halves = Sort(10, platform="gpu", dtype="float16", compute_capability=9.0, gpu="NVIDIA H200", processors=132)
    found = registry.choose("auto", halves)
    assert (found.name, found.reason, list(found.rejected)) == ("wide", FIRST, ["plain", "narrow"])


def test_what_none_of_those_allowed_supports_is_refused_with_the_reason_of_each(monkeypatch: pytest.MonkeyPatch):
    recorded(monkeypatch)
    bfloat16 = Sort(100, platform="gpu", dtype="bfloat16", compute_capability=9.0)
    sentence = (
        f"a sort by 'auto' does not support 100 rows in bfloat16 on gpu 9.0: wide: it sorts at most 99 rows; "
        f"narrow: {UNVERIFIED}; plain: it sorts float32 alone"
    )
    with refused(sentence, error=Unsupported) as caught:
        REGISTRY.choose("auto", bfloat16)
    assert list(caught.value.refused) == ["wide", "narrow", "plain"]
    with refused("a sort by 'wide' does not support 100 rows in float32 on cpu: wide: it", error=Unsupported):
        REGISTRY.choose("wide", MANY)


def test_an_unknown_name_is_refused_with_all_that_can_be_asked_for():
    assert REGISTRY.names == ("auto", "kernels", "wide", "narrow", "plain")
    with refused("a sort has no implementation 'quick'; expected one of auto, kernels, wide", error=ValueError):
        REGISTRY.choose("quick", FEW)


def test_each_choice_is_one_line_of_the_log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    recorded(monkeypatch)
    registry = Registry("sort", "a sort", ENTRIES)
    with caplog.at_level(logging.INFO, "pallas_kernels"):
        assert registry.chosen("plain", FEW) == registry.chosen("plain", FEW)
        registry.chosen("wide", FEW)
    assert [(record.levelname, record.message) for record in caplog.records] == [
        (
            "INFO",
            "sort by plain (the call names plain) for 10 rows in float32 on gpu 9.0; not wide: the call names plain; "
            "narrow: the call names plain",
        ),
        (
            "WARNING",
            f"sort by wide (the call names wide, though {UNVERIFIED}) for 10 rows in float32 on gpu 9.0; not narrow: "
            "the call names wide; plain: the call names wide",
        ),
    ]

"""A registry chooses an implementation, states why it did and why it took no other, and logs each choice once."""

import logging
from dataclasses import dataclass

import pytest

from pallas_kernels.choice import FIRST, UNVERIFIED, Chosen, Implementation, Registry, Request, Unsupported
from pallas_kernels.verified import OF_XLA, Record
from tests.sentences import refused


@dataclass(frozen=True)
class Sort(Request):
    rows: int

    @property
    def elements(self) -> int:
        return self.rows

    def __str__(self) -> str:
        return f"{self.rows} rows in {self.dtype} on {self.device_text}"


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


def recorded(monkeypatch: pytest.MonkeyPatch, *kernels: str, **shares: float) -> None:
    """Let there be records of these kernels on an H200 alone, with the speeds of some as shares of plain XLA's."""

    def record_of(kernel: str, gpu: str, processors: int | None) -> Record | None:
        if (gpu, processors) != ("NVIDIA H200", 132) or kernel not in kernels:
            return None
        share = shares.get(kernel.removeprefix("sort/"))
        return Record(kernel, gpu, 132, "", (), "", () if share is None else ((OF_XLA, share),))

    monkeypatch.setattr("pallas_kernels.choice.record_of", record_of)


def test_auto_takes_the_first_that_supports_the_request_and_is_verified(monkeypatch: pytest.MonkeyPatch):
    recorded(monkeypatch)
    assert REGISTRY.choose("auto", FEW) == Chosen("plain", FIRST, {"wide": UNVERIFIED, "narrow": UNVERIFIED})
    recorded(monkeypatch, "sort/wide", "sort/narrow")
    preferred = {"narrow": "wide is preferred", "plain": "wide is preferred"}
    assert REGISTRY.choose("auto", FEW) == Chosen("wide", FIRST, preferred)
    assert REGISTRY.choose("auto", MANY).rejected == {"wide": "it sorts at most 99 rows", "narrow": UNVERIFIED}


def test_auto_takes_no_kernel_that_was_slower_than_plain_xla(monkeypatch: pytest.MonkeyPatch):
    both = "sort/wide", "sort/narrow"
    recorded(monkeypatch, *both, wide=1.0, narrow=2.0)
    assert REGISTRY.choose("auto", FEW).name == "wide"
    recorded(monkeypatch, *both, wide=0.8)
    chosen = REGISTRY.choose("auto", FEW)
    slow = "it had 0.80 of plain XLA's speed on such a device"
    assert chosen.name == "narrow" and chosen.rejected["wide"] == slow
    recorded(monkeypatch, *both, wide=0.8, narrow=0.9)
    assert REGISTRY.choose("auto", FEW).name == "plain"
    assert REGISTRY.choose("wide", FEW).verified, "what is named runs"


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

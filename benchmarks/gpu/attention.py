"""Attention on the device: checks each implementation, and compares its speed with cuDNN and PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import batched
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu import jax_attention, torch_attention
from benchmarks.gpu.attention_cases import CHECKED, Case, timed
from benchmarks.gpu.check import add_check, compared
from benchmarks.gpu.journal import Journal
from benchmarks.gpu.programs import compile_all, seconds_of, sentence, why_not
from benchmarks.gpu.targets import DENSE_MASK
from pallas_kernels.attention import comparison, cudnn
from pallas_kernels.attention.registry import REGISTRY, Implementation

DRY_CHECKED = (Case("72, packed, window 20", 72, 64, 2, 1, packed=30, window=20),)
DRY_TIMED = (Case("packed", 64, 32, 2, 2, packed=20),)


def check(journal: Journal, name: str) -> None:
    """Output, log-sum-exp and gradients of one implementation against float64: at most twice plain JAX's error.

    Cases that the registry does not support are rows with the reason; all others have to run. Each case runs
    twice, and the row states whether the results are bitwise equal.
    """
    known = {entry.name: entry for entry in REGISTRY.entries}
    if name not in known:
        journal.skip(f"attention/{name}", "the registry of pallas_kernels.attention has no such implementation")
        return
    entry = known[name]
    for cases in batched(DRY_CHECKED if journal.dry else CHECKED, TOGETHER):
        if not journal.has_time(f"the rest of attention/{name}", 10):
            return
        check_some(journal, entry, cases)


def check_some(journal: Journal, entry: Implementation, cases: Sequence[Case]) -> None:
    """Adds a row for each of these cases, whose programs are compiled side by side."""
    name, lse, interpret = entry.name, entry.kernels is not None, journal.dry and entry.recorded
    reasons = {case: entry.supports(case.request(lse=lse, interpret=interpret)) for case in cases}
    asked = [case for case in cases if reasons[case] is None]
    what = ", ".join(case.name for case in asked)
    ours = {(case, "have"): gradients(case, name, lse, case.arrays(), interpret) for case in asked}
    compiled = compile_all(journal, what, ours)
    right = {"low": "xla", "wanted": None}
    compiling_cases = [case for case in asked if not isinstance(compiled[case, "have"], Exception)]
    compiled |= compile_all(
        journal,
        what,
        {
            (case, kind): gradients(case, by, lse, case.arrays())
            for case in compiling_cases
            for kind, by in right.items()
        },
    )
    for case in cases:
        have = compiled.get((case, "have"))
        if isinstance(have, Exception):  # the registry supports it, so that even a refusal is a failure
            journal.add("check", kernel=f"attention/{name}", case=case.name, failed=sentence(have))
            continue
        programs = {kind: compiled.get((case, kind)) for kind in KINDS}
        compare = partial(_compare, case, lse, programs, VARYING.get(name, ()))
        add_check(journal, f"attention/{name}", case.name, reasons[case], compare)


TOGETHER = 8
"""Cases whose programs are compiled side by side."""
KINDS = ("wanted", "low", "have")


RESULTS = ("out", "lse", "dq", "dk", "dv")
VARYING = {"mosaic": ("dq",), "cudnn": ("dq", "dk", "dv")}
"""Results that are not the same bits in every run, by implementation."""


def gradients(case: Case, name: str | None, lse: bool, arrays: tuple, interpret: bool = False) -> Any:
    """Lowers the results and gradients by the implementation `name`, or by the plain formula in float64."""

    def program(q: jax.Array, k: jax.Array, v: jax.Array, d_out: jax.Array, d_lse: jax.Array) -> tuple:
        attend: Any = case.dense if name is None else case.call(name, lse=lse, interpret=interpret)
        if not lse and name is None:
            attend = lambda q, k, v: case.dense(q, k, v)[0]
        results, pullback = jax.vjp(attend, q, k, v)
        gradients = pullback((d_out, d_lse) if lse else d_out)
        return *(results if lse else (results,)), *gradients

    def lower() -> Any:
        if name is not None:
            return jax.jit(program).lower(*arrays)
        with jax.enable_x64(True):
            return jax.jit(program).lower(*(jax.ShapeDtypeStruct(x.shape, jnp.float64) for x in arrays))

    return lower


def _compare(case: Case, lse: bool, compiled: dict[str, Any], varies: Sequence[str]) -> dict[str, Any]:
    arrays = case.arrays()
    with jax.enable_x64(True):
        wanted = [np.asarray(x) for x in compiled["wanted"](*(jnp.asarray(x, jnp.float64) for x in arrays))]
    low, have, again = (jax.device_get(compiled[kind](*arrays)) for kind in ("low", "have", "have"))
    names = [name for name in RESULTS if lse or name != "lse"]
    return compared(names, have, again, low, wanted, varies=varies)


def measure(journal: Journal) -> None:
    """TFLOP/s of forward and backward of every implementation that takes a case, in turn."""
    names = [entry.name for entry in REGISTRY.entries if journal.dry or entry.name != "xla"]
    rounds = 2 if journal.dry else 7
    for case in DRY_TIMED if journal.dry else timed():
        what = f"{case.name}, {case.seq} tokens, width {case.width}"
        if journal.ended(what) or not journal.has_time(what, 12):
            continue
        journal.begin(what)
        arrays, flops = case.arrays(), case.flops()
        row = {"case": case.name, "seq": case.seq, "width": case.width, "batch": case.batch}
        row |= {"heads": case.heads, "kv_heads": case.kv_heads}
        wrong = _wrong_packed(case)
        if wrong is not None:
            journal.add("attention", **row, by="cudnn", failed=wrong)
        asked = [name for name in names if name != "cudnn" or wrong is None]
        lowered = {(name, way): lower for name in asked for way, lower in _ways(case, name, arrays)}
        programs = compile_all(journal, what, lowered)
        if case.packed is not None:
            ways = _lowered(_masked(case), arrays)
            programs |= compile_all(journal, what, {(DENSE_MASK, way): lower for way, lower in ways})
        of_jax = jax_attention.refusal(case)
        if of_jax is None:
            ways = _lowered(jax_attention.attend(case), arrays)
            programs |= compile_all(journal, what, {(jax_attention.NAME, way): lower for way, lower in ways})
        ready: dict[str, dict[str, Any]] = {"forward": {}, "kept": {}, "backward": {}}
        for (name, way), program in programs.items():
            if isinstance(program, Exception):
                if way == "forward":
                    journal.add("attention", **row, by=name, **why_not(program))
                continue
            ready[way][name] = program
        calls = {"forward": _forward_calls(ready["forward"], arrays), "backward": _backward_calls(ready, case, arrays)}
        for name, ways in torch_attention.programs(case, journal).items():
            for way, call in ways.items():
                calls[way][name] = call
        for way, by_name in calls.items():
            work = flops * (2.5 if way == "backward" else 1.0)
            left = {name: call for name, call in by_name.items() if not journal.ended(f"{what} by {name}")}
            for name, seconds in _timed(journal, left, rounds, what).items():
                tflops = work / seconds["seconds"] / 1e12
                journal.add("attention", **row, by=name, way=way, tflops=tflops, **seconds)
        journal.add("over", case=what)


def _timed(journal: Journal, calls: dict[str, Any], rounds: int, what: str) -> dict[str, dict[str, float]]:
    """By name, the seconds of what runs. The first call of each has a line of its own, as what hangs does so there."""
    working = {}
    for name, call in calls.items():
        journal.begin(f"{what} by {name}")
        try:
            jax.block_until_ready(call())
            working[name] = call
        except Exception as error:  # reported in the table; the others are still timed
            journal.skip(f"{what} by {name}", sentence(error))
    journal.begin(what)
    return seconds_of(working, rounds) if working else {}


def _ways(case: Case, name: str, arrays: tuple) -> list[tuple[str, Any]]:
    """Lowers the forward alone, and the backward alone, which takes what the forward keeps."""
    return _lowered(case.call(name, lse=False), arrays)


def _wrong_packed(case: Case) -> str | None:
    """What is wrong with cuDNN's packed layout here, compared as a run compares it before it takes it; None if nothing
    is, or if the case does not come to it."""
    request = case.request(lse=False)
    return comparison.compare(request) if case.packed is not None and cudnn.supports(request) is None else None


def _masked(case: Case) -> Any:
    """cuDNN with the mask of the documents as a dense bias, through JAX's public function."""
    segments = case.segments()
    assert segments is not None, f"{case.name} has no documents"

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        indices = jnp.arange(case.seq)
        mask = (segments[:, None, :, None] == segments[:, None, None, :]) & (indices[:, None] >= indices)
        implementation = "cudnn" if jax.devices()[0].platform == "gpu" else "xla"
        return jax.nn.dot_product_attention(q, k, v, mask=mask, implementation=implementation)

    return attend


def _lowered(attend: Any, arrays: tuple) -> list[tuple[str, Any]]:
    forward = jax.jit(attend)
    keeping, backward = _keeping(attend), jax.jit(lambda pullback, d_out: pullback(d_out))
    q, k, v, d_out, _ = arrays

    def lower_backward() -> Any:
        _, pullback = jax.eval_shape(keeping, q, k, v)
        return backward.lower(pullback, d_out)

    return [
        ("forward", lambda: forward.lower(q, k, v)), ("kept", lambda: keeping.lower(q, k, v)),
        ("backward", lower_backward),
    ]  # fmt: skip


def _keeping(attend: Any) -> Any:
    return jax.jit(lambda q, k, v: jax.vjp(attend, q, k, v))


def _forward_calls(programs: dict[str, Any], arrays: tuple) -> dict[str, Any]:
    return {name: (lambda program=program: program(*arrays[:3])) for name, program in programs.items()}


def _backward_calls(ready: dict[str, dict[str, Any]], case: Case, arrays: tuple) -> dict[str, Any]:
    calls = {}
    for name, program in ready["backward"].items():
        if name in ready["kept"]:
            calls[name] = _Backward(program, ready["kept"][name], arrays)
    return calls


class _Backward:
    """The backward alone; what the forward keeps for it is made when it is first called."""

    def __init__(self, program: Any, keeping: Any, arrays: tuple):
        self.program, self.keeping, self.arrays, self.pullback = program, keeping, arrays, None

    def __call__(self) -> Any:
        if self.pullback is None:
            self.pullback = self.keeping(*self.arrays[:3])[1]
        return self.program(self.pullback, self.arrays[3])

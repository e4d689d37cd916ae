"""Linear attention by kernels: against float64, in Mosaic GPU's simulator and compiled for H100s."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.layers.linear_attention import recurrence
from pallas_kernels.attention.mosaic.registers import row_values
from pallas_kernels.linear_attention import derivative, mosaic, reference
from pallas_kernels.linear_attention.mosaic import passing, steps
from pallas_kernels.linear_attention.mosaic.operands import Operands
from tests.gpu_compile import in_child
from tests.pallas_kernels import machine_code
from tests.pallas_kernels.attention.mosaic.simulator import REPORTED, watch_tensor_cores
from tests.pallas_kernels.linear_attention.linear64 import Case, chunks, float64, results, streams

CASES = {
    "a decay of each head": Case(128, 2, 64, 64, delta=False, by_key=False),
    "delta rule, decays of keys, a remainder": Case(150, 2, 64, 128, delta=True, by_key=True, rows=2),
    "delta rule, strong decays": Case(200, 1, 128, 64, delta=True, by_key=False, gate=80.0),
    "decays of keys, strong": Case(130, 1, 128, 128, delta=False, by_key=True, gate=80.0),
    "no decay, one document": Case(192, 1, 64, 64, delta=True, by_key=False, gate=0.0, documents=1),
    "wide": Case(100, 1, 256, 256, delta=True, by_key=True),
    "many documents": Case(320, 1, 192, 64, delta=False, by_key=False, documents=40),
    "fewer tokens than a chunk": Case(7, 1, 64, 192, delta=True, by_key=True, documents=1),
}


def by(kernels: Any, case: Case, **options: Any) -> dict[str, np.ndarray]:
    """The results of `recurrence`, with kernels of a module."""
    of = lambda x: jnp.asarray(x, jnp.int32 if x.dtype.kind == "i" else jnp.float32)
    given, documents, state = jax.tree.map(of, streams(case))
    registry = {"mosaic": SimpleNamespace(scan_chunks=partial(derivative.scan_chunks, kernels=kernels, **options))}
    scan = partial(recurrence.scan, backend="mosaic")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recurrence, "REGISTRY", registry)
        run = lambda streams, documents, state: scan(streams, documents, state, documents[:, 0])
        return results(run, given, documents, state)


def errors(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> dict[str, float]:
    """The largest of each result, relative to its largest number; infinite where something is not finite."""
    assert found.keys() == wanted.keys()
    relative = lambda a, b: np.abs(a - b).max() / max(np.abs(b).max(), 1e-30) if np.isfinite(a).all() else np.inf
    return {name: float(relative(found[name].astype(np.float64), wanted[name])) for name in wanted}


@pytest.mark.matrix(quick=("delta rule, decays of keys, a remainder",), ci=1)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_outputs_and_gradients_are_near_to_float64(case: Case) -> None:
    """By the steps of the kernels in plain JAX, with their roundings: at most four times the error that comes
    from operands alone being bfloat16: streams, the first state and cotangents."""
    wanted = float64(case)
    found, of_inputs = errors(by(reference, case), wanted), errors(float64(case, rounded=True), wanted)
    assert all(error <= 4 * of_inputs[name] for name, error in found.items()), (found, of_inputs)


SIMULATED = {
    "sums": (3, 1, 64, 64, False),
    "delta rule": (3, 1, 64, 64, True),
    "delta rule, more programs than one": (3, 2, 128, 128, True),
    "sums, as many steps as slots": (2, 1, 128, 64, False),
    "delta rule, one step": (1, 1, 64, 64, True),
    "delta rule, one slot": (2, 1, 256, 64, True),
}


@pytest.mark.matrix(quick=("delta rule",), ci=1)
@pytest.mark.parametrize("sizes", SIMULATED.values(), ids=SIMULATED)
def test_simulated_kernels_equal_plain_jax_and_have_no_race(
    sizes: tuple, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    watch_tensor_cores(monkeypatch)
    assert differences(*chunks(*sizes)) <= 2.0**-7
    assert REPORTED not in capfd.readouterr().out


def differences(operands: Any, state: Any) -> float:
    """The largest difference of a result of both kernels, relative to its largest number; sums in another order may
    round differently."""
    found, wanted = (
        jax.tree.leaves(
            (of.forward(operands, state, save=True, interpret=True), of.backward(operands, state, interpret=True))
        )
        for of in (mosaic, reference)
    )
    one = lambda a, b: np.abs(a - b).max() / np.abs(b).max()
    return max(one(*(np.asarray(x, np.float64) for x in pair)) for pair in zip(found, wanted, strict=True))


def _decays_twice(ref: Any) -> jax.Array:
    return row_values(ref) * row_values(ref)


FAULTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "a state decays twice": (steps, "row_values", _decays_twice),
    "the backward goes forward": (passing._Kernel, "chunk", lambda kernel, step: step),
    "nothing is removed": (mosaic, "_added", lambda chunks: chunks._replace(removed=chunks.removed * 0)),
}


@pytest.mark.matrix(quick=(), ci=1)
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_of_a_kernel_is_seen(
    fault: tuple[Any, str, Callable[..., Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*fault)
    assert differences(*chunks(3, 1, 64, 64, True)) > 0.02


def test_an_operand_that_is_loaded_before_all_products_have_read_the_last_one_is_a_race(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    watch_tensor_cores(monkeypatch)
    wait, load = Operands.wait, Operands.next

    def early(operands: Operands, step: Any, index: int) -> Any:
        found = wait(operands, step, index)
        load(operands, step, index)
        return found

    monkeypatch.setattr(Operands, "wait", early)
    monkeypatch.setattr(Operands, "next", lambda operands, step, *indices: load(operands, step))
    differences(*chunks(3, 1, 64, 64, False))
    assert REPORTED in capfd.readouterr().out


COMPILED = {
    "Mamba-2": (4096, 16, 128, 64, False, False),
    "gated DeltaNet": (4096, 16, 128, 128, True, False),
    "Kimi delta, wide": (2048, 8, 256, 256, True, True),
    "GLA, 192": (2048, 8, 192, 128, False, True),
    "narrow": (2048, 8, 64, 64, True, False),
}


@pytest.mark.matrix(quick=(), ci=1)
@pytest.mark.parametrize("sizes", COMPILED.values(), ids=COMPILED)
def test_compiled_kernels_spill_nothing(sizes: tuple) -> None:
    found = in_child("tests.pallas_kernels.linear_attention.gpu_linear_attention:kernels", *sizes)
    names = ["linear_attention_backward", "linear_attention_forward"]
    assert sorted(kernel["name"] for kernel in found["kernels"]) == names
    assert max(found["shared"]) <= machine_code.SHARED["h100"]
    for kernel in found["kernels"]:
        machine_code.check(kernel)
        assert kernel["wgmma"] > 0 and kernel["tma"] > 0, kernel

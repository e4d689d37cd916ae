"""RMSNorm of each head with its rotary embedding: the kernels in the interpreter and plain JAX against float64."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from pallas_kernels.norm_rotary import norm_rotary
from pallas_kernels.norm_rotary.registry import REGISTRY, Request
from pallas_kernels.toolchain import versions
from pallas_kernels.verified import Record, digest
from tests.gpu_compile import in_child
from tests.pallas_kernels import machine_code
from tests.pallas_kernels.norm_rotary.rotary64 import EPSILON, Results, by, errors, expected, given
from tests.sentences import refused

SHAPES = [(1, 1, 1, 64), (2, 37, 5, 128), (1, 33, 12, 80), (2, 16, 8, 192), (1, 9, 17, 96), (2, 5, 1, 256)]
"""[batch, seq, heads, head_dim]: one row; tokens and heads that no program's share divides; halves of heads that are no
powers of two (40, 96, 48); one head."""

interpreted = jax.jit(partial(by, "triton", interpret=True))
plain = jax.jit(partial(by, "xla"))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_kernels_are_as_near_to_float64_as_plain_jax(shape: tuple[int, int, int, int], dtype: str):
    of = given(shape, dtype)
    wanted, found = expected(of), interpreted(of)
    assert [str(one.dtype) for one in found] == [dtype, dtype, "float32"]
    have, allowed = errors(found, wanted), errors(plain(of), wanted)
    assert all(have[name] <= 2 * allowed[name] + 1e-6 for name in have), (have, allowed)
    again: Results = interpreted(of)
    assert all(np.array_equal(a, b) for a, b in zip(found, again, strict=True)), "the same bits every time"


@pytest.mark.parametrize("implementation", ["triton", "xla"])
def test_cosines_and_sines_may_have_a_magnitude(implementation: str):
    """As those of YaRN have."""
    of = given((1, 20, 3, 64), "float32")
    found = by(implementation, of, magnitude=1.4, interpret=implementation == "triton")
    assert max(errors(found, expected(of, magnitude=1.4)).values()) < 1e-5


def test_the_gradient_of_the_scale_is_summed_over_ranks():
    """Rows over two ranks, the sequence over two and heads over two. The interpreter has no types of ranks: programs
    for GPUs are compiled with them."""
    mesh = jax.make_mesh((2, 2, 2), ("fsdp", "context", "tensor"), axis_types=(AxisType.Auto,) * 3)
    of = given((2, 12, 6, 64), "float32")
    heads, table = P("fsdp", "context", "tensor"), P("fsdp", "context")
    run = partial(norm_rotary, epsilon=EPSILON, implementation="triton", interpret=True)
    specs = {"in_specs": (heads, P(), table, table), "out_specs": heads}
    mapped = jax.jit(jax.shard_map(run, mesh=mesh, **specs, check_vma=False))
    out, pull = jax.vjp(lambda x, scale: mapped(x, scale, jnp.cos(of.angles), jnp.sin(of.angles)), of.x, of.scale)
    assert max(errors(Results(out, *pull(of.d_out)), expected(of)).values()) < 1e-5


def test_what_is_kept_for_the_backward_is_what_was_given():
    of = given((1, 64, 4, 128))
    cos, sin = jnp.cos(of.angles), jnp.sin(of.angles)
    run = lambda x, scale: norm_rotary(x, scale, cos, sin, epsilon=EPSILON, implementation="triton", interpret=True)
    _, pull = jax.vjp(run, of.x, of.scale)
    kept = sum(one.nbytes for one in jax.tree.leaves(pull))
    assert kept == of.x.nbytes + of.scale.nbytes + cos.nbytes + sin.nbytes


GPU: dict[str, Any] = {"platform": "gpu", "compute_capability": 9.0, "gpu": "NVIDIA H200", "processors": 132}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"platform": "cpu", "compute_capability": None}, "it needs an NVIDIA GPU, and the platform is cpu"),
        ({"compute_capability": 7.5}, "it needs compute capability 8.0"),
        ({"dtype": "float64"}, "not float64"),
        ({"head_dim": 24}, "heads are 32 to 512 wide, a multiple of 16, not 24"),
        ({"head_dim": 1024}, "heads are 32 to 512 wide, a multiple of 16, not 1024"),
        ({"tokens": 2**20, "heads": 32}, "2^31 elements or more"),
    ],
)
def test_what_the_kernel_cannot_do_is_refused(changed: dict[str, Any], why: str):
    request = Request(**{"dtype": "bfloat16", "tokens": 8192, "heads": 32, "head_dim": 128} | GPU | changed)
    with refused("norm with rotary embedding by 'triton' does not support", why, error=ValueError):
        REGISTRY.choose("triton", request)
    assert REGISTRY.choose("auto", request).name == "xla"


def test_auto_waits_for_a_record(monkeypatch: pytest.MonkeyPatch):
    request = Request(dtype="bfloat16", tokens=8192, heads=32, head_dim=128, **GPU)
    monkeypatch.setattr("pallas_kernels.verified.records", lambda: ())
    found = REGISTRY.choose("auto", request)
    assert found.name == "xla" and found.rejected == {"triton": "it has not been verified on such a device"}
    assert not REGISTRY.choose("triton", request).verified
    kernel = "norm_rotary/triton"
    record = Record(kernel, "NVIDIA H200", 132, "2026-11-27", tuple(versions().items()), digest(kernel))
    monkeypatch.setattr("pallas_kernels.verified.records", lambda: (record,))
    assert REGISTRY.choose("auto", request).name == "triton"


@pytest.mark.parametrize(
    ("changed", "parts"),
    [
        ({"x": (4, 2, 64)}, ("x is [batch, seq, heads, head_dim]", "(4, 2, 64)")),
        ({"x": (1, 4, 2, 63)}, ("of an even head_dim", "63")),
        ({"scale": (32,)}, ("scale is [head_dim]", "(32,)")),
        ({"cos": (1, 4, 64)}, ("[batch, seq, head_dim / 2]", "(1, 4, 64)")),
    ],
)
def test_shapes_that_do_not_fit_are_one_sentence(changed: dict[str, tuple[int, ...]], parts: tuple[str, ...]):
    shapes = {"x": (1, 4, 2, 64), "scale": (64,), "cos": (1, 4, 32), "sin": (1, 4, 32)} | changed
    x, scale, cos, sin = (jnp.ones(shape) for shape in shapes.values())
    with refused(*parts, error=ValueError):
        norm_rotary(x, scale, cos, sin, epsilon=1e-6)


CASES = {
    "llama 3 8B's queries": (8192, 32, 128, "bfloat16"),
    "keys": (8192, 8, 128, "bfloat16"),
    "narrow": (4096, 12, 64, "bfloat16"),
    "no powers of two": (4001, 5, 96, "float16"),
    "192": (4096, 8, 192, "bfloat16"),
    "256": (8192, 4, 256, "float32"),
    "widest": (1024, 2, 512, "bfloat16"),
}


@pytest.mark.matrix(quick=("h100-llama 3 8B's queries",), ci=1)
@pytest.mark.parametrize(("gpu", "case"), [(gpu, case) for gpu in machine_code.SHARED for case in CASES])
def test_compiled_kernels_spill_nothing(gpu: str, case: str):
    """With 128 registers a thread, four programs share a multiprocessor: while one waits for memory others compute."""
    found = dict(in_child("tests.pallas_kernels.norm_rotary.gpu_norm_rotary:kernels", gpu, *CASES[case]))
    assert {name.split("__")[0] for name in found} == {"norm_rotary_forward", "norm_rotary_backward"}
    for name, resources in found.items():
        machine_code.check(resources)
        assert resources["registers"] <= 128, (name, resources)
        assert resources["shared"] <= 4096, (name, resources)

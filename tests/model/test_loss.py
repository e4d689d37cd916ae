"""Cross-entropy over a split vocabulary equals the dense one in float64, with its gradients."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxpar.mesh.axes import varying_axes
from jaxpar.model.loss import vocabulary_cross_entropy
from tests.traced import mesh_of, sent_bytes

VOCAB, PADDED, RANKS = 21, 24, 4
ROWS = P("fsdp")
AXES = [("tensor",), ("pipe", "tensor")]
DRAW = np.random.default_rng(0)
LOGITS = np.where(np.arange(PADDED) < VOCAB, 3 * DRAW.standard_normal((4, 6, PADDED)), -np.inf).astype(np.float32)
LABELS = DRAW.integers(0, VOCAB, (4, 6)).astype(np.int32)
D_NLL, D_LSE = DRAW.standard_normal((2, 4, 6)).astype(np.float32)


def split(axes: tuple[str, ...]) -> tuple[Mesh, Any]:
    """(mesh, function): on each rank (nll, log-sum-exp, gradient of the logits), the vocabulary split over `axes`."""
    cross_entropy: Any = vocabulary_cross_entropy

    def program(logits: jax.Array, labels: jax.Array, d_nll: jax.Array, d_lse: jax.Array) -> Any:
        (nll, lse), pullback = jax.vjp(lambda x: cross_entropy(x, labels, axes), logits)
        assert varying_axes(nll) == varying_axes(lse) == {"fsdp"}, "the same on every rank that has a part"
        return nll, lse, pullback((d_nll, d_lse))[0]

    mesh = mesh_of(fsdp=2, tensor=RANKS) if axes == ("tensor",) else mesh_of(pipe=2, fsdp=2, tensor=RANKS // 2)
    parts = P("fsdp", None, axes)
    return mesh, jax.shard_map(program, mesh=mesh, in_specs=(parts, ROWS, ROWS, ROWS), out_specs=(ROWS, ROWS, parts))


def dense(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same in float64 on one device, by autodiff of the definition."""
    with jax.enable_x64(True):

        def function(x: jax.Array) -> tuple[jax.Array, jax.Array]:
            lse = jnp.log(jnp.exp(x - x.max(-1, keepdims=True)).sum(-1)) + x.max(-1)
            return lse - jnp.take_along_axis(x, LABELS[..., None], axis=-1)[..., 0], lse

        wide = jnp.asarray(logits[..., :VOCAB], jnp.float64)
        (nll, lse), pullback = jax.vjp(function, wide)
        (gradient,) = pullback((jnp.asarray(D_NLL, jnp.float64), jnp.asarray(D_LSE, jnp.float64)))
        return np.asarray(nll), np.asarray(lse), np.asarray(gradient)


@pytest.mark.parametrize("axes", AXES, ids="-".join)
@pytest.mark.parametrize("shift", [0.0, 3e4], ids=["near_zero", "far_from_zero"])
def test_a_split_vocabulary_gives_the_dense_numbers(shift: float, axes: tuple[str, ...]):
    """Labels fall on every rank, and the last rank's columns are partly padding. A large shift must not overflow."""
    assert set(LABELS.ravel() // (PADDED // RANKS)) == set(range(RANKS))
    logits = (LOGITS + np.float32(shift)).astype(np.float32)
    nll, lse, gradient = jax.jit(split(axes)[1])(logits, LABELS, D_NLL, D_LSE)
    wanted_nll, wanted_lse, wanted_gradient = dense(logits)
    tolerance = 1e-6 + 1.2e-7 * shift  # the spacing of float32 numbers around the shift
    np.testing.assert_allclose(nll, wanted_nll, atol=tolerance, rtol=1e-6)
    np.testing.assert_allclose(lse, wanted_lse, rtol=1e-6)
    np.testing.assert_allclose(gradient[..., :VOCAB], wanted_gradient, atol=tolerance)
    assert not np.asarray(gradient[..., VOCAB:]).any(), "padding gets no gradient"


@pytest.mark.parametrize("axes", AXES, ids="-".join)
def test_three_numbers_per_token_are_sent_and_the_backward_sends_nothing(axes: tuple[str, ...]):
    tokens, ring = 2 * 6, 2 * (RANKS - 1) / RANKS
    sent = sent_bytes(*split(axes), LOGITS, LABELS, D_NLL, D_LSE)
    assert sum(sent.values()) == 3 * tokens * 4 * ring

"""Head and loss in tiles give the numbers of the whole in float64, and never have the logits of more than a tile."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxpar.config import ModelConfig
from jaxpar.mesh.axes import AXES, vary, varying_axes
from jaxpar.mesh.collectives import reduce_sum
from jaxpar.model.tiled_loss import HeadLoss, TokenLosses
from tests.gpu_compile import in_child
from tests.traced import mesh_of, operations, sent_bytes

EMBED, VOCAB, PADDED, ROWS, SEQUENCE = 12, 45, 48, 4, 20
MESHES: dict[str, tuple[tuple[str, ...], dict[str, int]]] = {
    "one device": (("tensor",), {}),
    "tensor 2": (("tensor",), {"tensor": 2, "fsdp": 2, "context": 2}),
    "tensor 4": (("tensor",), {"tensor": 4, "fsdp": 2}),
    "pipe and tensor": (("pipe", "tensor"), {"pipe": 2, "tensor": 2, "fsdp": 2}),
}
"""The axes that split the vocabulary, and the mesh. A device has 10, 20 or 80 tokens of its own."""
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "softcap": {"logit_softcap": 2.0},
    "z-loss, tied": {"z_loss": 0.1, "tied": True},
    "all": {"logit_softcap": 2.0, "z_loss": 0.1, "tied": True},
}
SCALE = 0.37
"""The cotangent of the objective."""


def model_of(**options: Any) -> ModelConfig:
    return ModelConfig(embed=EMBED, vocab=VOCAB, vocab_multiple=16, **options)


def numbers(model: ModelConfig) -> tuple[np.ndarray, ...]:
    """(x, table, labels, mask): labels of every part of the vocabulary, a third of the tokens masked."""
    draw = np.random.default_rng(1)
    x, table = draw.standard_normal((ROWS, SEQUENCE, EMBED)), draw.standard_normal((EMBED, PADDED))
    labels, mask = draw.integers(0, VOCAB, (ROWS, SEQUENCE)), draw.random((ROWS, SEQUENCE)) < 2 / 3
    table = table.T if model.tied else table
    return x.astype(np.float32), table.astype(np.float32), labels.astype(np.int32), mask.astype(np.float32)


def in_tiles(model: ModelConfig, mesh: str, tiles: int, *, train: bool = True) -> tuple[Mesh, Any]:
    """(mesh, function): (x, table, labels, mask) -> (objective, nll), with `train` also `SCALE` times (dx, dtable)."""
    axes, sizes = MESHES[mesh]
    head = HeadLoss(model, axes, tiles)
    counted = [axis for axis in AXES if axis not in axes]

    def program(x: jax.Array, table: jax.Array, labels: jax.Array, mask: jax.Array) -> Any:
        def loss(x: jax.Array, table: jax.Array) -> tuple[jax.Array, jax.Array]:
            return TokenLosses(vary(x), vary(table), head).cross_entropy(labels, mask)

        if not train:
            return tuple(reduce_sum(total, counted) for total in loss(x, table))
        objective, pullback, nll = jax.vjp(loss, x, table, has_aux=True)
        gradients = pullback(vary(jnp.asarray(SCALE, objective.dtype), varying_axes(objective)))
        return reduce_sum(objective, counted), reduce_sum(nll, counted), *gradients

    tokens, parts = P("fsdp", "context"), P("fsdp", ("context", "tensor"))
    table = P(axes, None) if model.tied else P(None, axes)
    results = (P(), P(), parts, table) if train else (P(), P())
    on = mesh_of(**sizes)
    return on, jax.shard_map(program, mesh=on, in_specs=(parts, table, tokens, tokens), out_specs=results)


def dense(model: ModelConfig) -> tuple[Any, ...]:
    """The same as written on paper, in float64."""
    x, table, labels, mask = numbers(model)
    x, weight = x.astype(np.float64), (table.T if model.tied else table)[:, :VOCAB].astype(np.float64)
    cap, z = model.logit_softcap, model.z_loss
    raw = x @ weight
    logits = raw if cap is None else cap * np.tanh(raw / cap)
    lse = np.log(np.exp(logits).sum(-1))
    hit = labels[..., None] == np.arange(VOCAB)
    nll = lse - logits[hit].reshape(labels.shape)
    d_logits = mask[..., None] * ((1 + 2 * z * lse)[..., None] * np.exp(logits - lse[..., None]) - hit)
    if cap is not None:
        d_logits = d_logits * (1 - (logits / cap) ** 2)
    d_weight = np.zeros((EMBED, PADDED))
    d_weight[:, :VOCAB] = np.einsum("bse,bsv->ev", x, d_logits)
    dx, d_table = SCALE * d_logits @ weight.T, SCALE * (d_weight.T if model.tied else d_weight)
    return (mask * (nll + z * lse**2)).sum(), (mask * nll).sum(), dx, d_table


def close(found: Any, wanted: Any) -> None:
    for a, b in zip(found, wanted, strict=True):
        a = np.asarray(a, np.float64)
        assert np.abs(a - b).max() <= 1e-6 * np.abs(b).max()


CASES = [
    ("one device", 1, "all"),
    ("one device", 4, "plain"),
    ("one device", 7, "all"),  # of 12 tokens, the last of 8
    ("one device", 80, "softcap"),
    ("tensor 2", 1, "z-loss, tied"),
    ("tensor 2", 3, "softcap"),
    ("tensor 4", 3, "all"),
    ("tensor 4", 8, "plain"),  # five tiles of two tokens, none left for the others
    ("pipe and tensor", 1, "plain"),
    ("pipe and tensor", 6, "all"),
    ("one device", 2, "all"),
    ("tensor 4", 2, "softcap"),
    ("pipe and tensor", 2, "z-loss, tied"),
]


@pytest.mark.parametrize(("mesh", "tiles", "options"), CASES)
def test_loss_and_gradients_equal_the_whole_in_float64(mesh: str, tiles: int, options: str):
    model = model_of(**OPTIONS[options])
    *arguments, labels, mask = numbers(model)
    assert 0 < mask.sum() < mask.size and set(labels[mask > 0] // (PADDED // 4)) == set(range(4))
    found = jax.jit(in_tiles(model, mesh, tiles)[1])(*arguments, labels, mask)
    close(found, dense(model))
    columns = np.asarray(found[3]).T if model.tied else np.asarray(found[3])
    assert not columns[:, VOCAB:].any(), "padding gets no gradient"


def test_labels_of_masked_tokens_may_be_anything():
    model = model_of()
    x, table, labels, mask = numbers(model)
    odd = np.where(mask > 0, labels, -100).astype(np.int32)
    close(jax.jit(in_tiles(model, "tensor 2", 3)[1])(x, table, odd, mask), dense(model))


@pytest.mark.parametrize("mesh", ["one device", "tensor 4"])
def test_without_a_derivative_no_gradient_is_computed(mesh: str):
    """One matmul a tile instead of three, and the same loss."""
    model, tiles = model_of(z_loss=0.1), 5
    matmuls = {
        train: sum(
            times
            for equation, times in operations(in_tiles(model, mesh, tiles, train=train)[1], *numbers(model))
            if equation.primitive.name == "dot_general"
        )
        for train in (True, False)
    }
    assert matmuls == {True: 3 * tiles, False: tiles}
    alone = jax.jit(in_tiles(model, mesh, tiles, train=False)[1])(*numbers(model))
    close(alone, dense(model)[:2])


def largest(model: ModelConfig, tiles: int) -> int:
    """Numbers in the largest array that the program makes with an edge as long as the vocabulary, but the weights'."""
    made = (
        v.aval
        for equation, _ in operations(in_tiles(model, "one device", tiles)[1], *numbers(model))
        for v in equation.outvars
    )
    return max(a.size for a in made if PADDED in a.shape and a.shape not in ((EMBED, PADDED), (PADDED, EMBED)))


def test_the_logits_of_one_tile_are_all_there_are():
    model, tokens = model_of(logit_softcap=2.0, z_loss=0.1), ROWS * SEQUENCE
    assert largest(model, 1) == tokens * PADDED
    assert largest(model, 10) == tokens * PADDED // 10


@pytest.mark.parametrize("tiles", [1, 3])
def test_the_first_of_several_tiles_is_done_before_the_others_and_one_alone_is_free(tiles: int):
    """One tile's gradient may be computed after the layers' backward, which needs the room."""
    traced = operations(in_tiles(model_of(), "one device", tiles)[1], *numbers(model_of()))
    barriers = sum(equation.primitive.name == "optimization_barrier" for equation, _ in traced)
    assert barriers == (tiles > 1)


@pytest.mark.parametrize("mesh", ["tensor 4", "pipe and tensor"])
def test_tiles_send_what_the_whole_sends(mesh: str):
    model = model_of()
    sent = [sent_bytes(*in_tiles(model, mesh, tiles), *numbers(model)) for tiles in (1, 5)]
    assert sent[0] == sent[1] and sent[0]["all_gather"] > 0 and sent[0]["reduce_scatter"] > 0


def test_in_bfloat16_the_gradients_of_many_tiles_are_added_up_in_float32():
    """400 equal tokens, a tile each: sums in bfloat16 stop growing at 256 of them."""
    model = model_of()
    x = np.ones((1, 400, EMBED), jnp.bfloat16)
    table, labels = np.zeros((EMBED, PADDED), jnp.bfloat16), np.zeros((1, 400), np.int32)
    mask = np.ones((1, 400), np.float32)
    *_, dx, d_table = jax.jit(in_tiles(model, "one device", 400)[1])(x, table, labels, mask)
    assert dx.dtype == d_table.dtype == jnp.bfloat16
    wanted = 400 * SCALE * (1 / VOCAB - (np.arange(VOCAB) == 0))
    np.testing.assert_allclose(np.asarray(d_table[0, :VOCAB], np.float64), wanted, rtol=1e-2)


@pytest.mark.long
def test_the_head_of_a_large_vocabulary_fits_beside_the_model():
    """32k tokens of Llama-3-8B's shapes on an H100: 15.7 GiB of float32 logits, and half of it for their gradient."""
    cases = ["head", 16, 1], ["head", 16, 1, "model.tied=true"], ["head", 4, 4], ["head", 1, 1]
    *tiled, whole = in_child("tests.model.gpu_tiles:measure", *cases)
    assert whole > 23 * 2**30
    assert max(tiled) < 2 * 2**30

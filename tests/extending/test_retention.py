"""A mixer registered from outside the package: a float64 recurrence, token by token, on any layout; and its decode."""

from dataclasses import asdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.config import load_config
from jaxpar.config.mappings.latent_attention import LatentAttentionConfig
from jaxpar.config.mappings.overlap import OverlapConfig
from jaxpar.config.parts import MIXERS
from jaxpar.config.schema.model import Pattern
from jaxpar.generation.generator import Generator
from jaxpar.layers.block import Context
from jaxpar.layers.declared import declare_layer
from jaxpar.layers.ops.plain import Ops
from jaxpar.memory.layer_shape import activation_bytes
from jaxpar.model.flops import causal_pairs, flops_per_step
from jaxpar.runtime.batch import Field
from jaxpar.runtime.passes import Output
from tests.extending import retention
from tests.memory.shapes import layer_shape
from tests.model.test_goldens import logits
from tests.packed_rows import packed_rows
from tests.reference import decoder64
from tests.sentences import refused
from tests.small_run import SmallRun, small
from tests.training.parity.one_device import TOLERANCE, assert_close

LAYOUTS: dict[str, dict[str, Any]] = {
    "one device": {},
    "context and tensor": {"context": 2, "tensor": 2, "microbatches": 2},
    "pipe": {"pipe": 2, "microbatches": 2},
    "fsdp": {"fsdp": 2, "zero": 3},
    "weights in parts": {"fsdp": 2, "context": 2, "zero": 3, "overlap": OverlapConfig(weight_prefetch="parts")},
}
HYBRID = {
    "layers": 2,
    "mixer": "attention",
    "kinds": {"state": {"mixer": "retention"}, "full": {}},
    "pattern": Pattern(("state", "full")),
}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry of the registry and small chunks, for the time of a test."""
    monkeypatch.setitem(MIXERS, "retention", retention.MIXER)
    monkeypatch.setattr(retention, "CHUNK", 4)


def run_of(model: dict[str, Any] | None = None, **sections: dict[str, Any]) -> SmallRun:
    return SmallRun(small(model={"layers": 2, "mixer": "retention"} | (model or {}), **sections))


def retention64(x: Any, weights: Any, options: Any, batch: Any) -> Any:
    """The recurrence of arXiv:2307.08621, equations 1 and 8, one token after another."""
    q, k, v, gate = (jnp.einsum("bse,ehd->bshd", x, weights[name]) for name in ("query", "key", "value", "gate"))
    q, k = (decoder64.rotate(each, batch["positions"], options) for each in (q, k))
    heads, width = q.shape[2:]
    decay = 1 - 2.0 ** (-5 - jnp.arange(heads))
    continues = jnp.pad(batch["segments"][:, 1:] == batch["segments"][:, :-1], ((0, 0), (1, 0)))

    def token(state: Any, xs: Any) -> Any:
        q, k, v, continues = xs
        state = jnp.where(continues, 1.0, 0.0)[:, None, None, None] * decay[:, None, None] * state
        state += jnp.einsum("bhk,bhv->bhkv", k / np.sqrt(width), v)
        return state, jnp.einsum("bhk,bhkv->bhv", q, state)

    ahead = jax.tree.map(lambda each: jnp.moveaxis(each, 1, 0), (q, k, v, continues))
    _, out = jax.lax.scan(token, jnp.zeros((len(x), heads, width, width), x.dtype), ahead)
    out = decoder64.rms_norm(jnp.moveaxis(out, 0, 1), jnp.ones(width), options["norm_epsilon"])
    return jnp.einsum("bshd,hde->bse", out * jax.nn.silu(gate), weights["output"])


def renamed(weights: Any, old: str, new: str) -> Any:
    """A tree of weights whose layers have a mixer under another name."""
    layers = {name.replace(old, new): tree for name, tree in weights["layers"]["all"].items()}
    return weights | {"layers": {"all": layers}}


@pytest.mark.matrix(quick=("context and tensor",), ci=3)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_loss_and_gradients_equal_a_recurrence_in_float64(layout: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(decoder64, "attention", retention64)
    # The norm of an output that is almost 0 enlarges rounding; and compiled references are kept by their options.
    run = run_of({"norm_epsilon": 1e-2}, parallel=LAYOUTS[layout])
    batch, state = packed_rows(run), run.step.residency.initial_state()
    weights = renamed(run.by_layer(state.master), "retention", "attention")
    wanted, gradients = decoder64.loss_and_gradients(weights, asdict(run.config.model), batch)
    loss, found = run.step.gradients(state, run.place(batch))
    assert_close(loss, wanted, run.by_layer(found), renamed(gradients, "attention", "retention"))


@pytest.mark.long
@pytest.mark.parametrize("parallel", [{}, {"context": 2, "tensor": 2}], ids=["one device", "context and tensor"])
def test_decode_equals_the_parallel_form_for_100_tokens(parallel: dict[str, Any]):
    run = run_of(HYBRID, parallel=parallel, data={"sequence_length": 128})
    prompts = [list(range(1, 4)), list(range(5, 22)), [7]]
    weights = run.step.residency.initial_state().master
    found = Generator(run.config, run.step.mesh, weights).continued(prompts, 100)
    one = run_of(HYBRID, data={"sequence_length": 128})
    tokens = np.zeros((8, 128), np.int32)
    for row, (prompt, new) in enumerate(zip(prompts, found, strict=True)):
        tokens[row, : len(prompt) + 100] = [*prompt, *new.tokens]
    by_training = np.asarray(logits(one.step)(jax.device_get(weights), one.place(decoder64.plain_batch(tokens))))
    likely = jax.nn.log_softmax(by_training.astype(np.float32), axis=-1)
    for row, (prompt, new) in enumerate(zip(prompts, found, strict=True)):
        after = np.asarray(likely[row, len(prompt) - 1 : len(prompt) + 99])
        np.testing.assert_allclose(new.log_probabilities, after.max(axis=-1), atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.long
def test_a_hybrid_of_retention_and_attention_trains_alike_on_a_split_mesh():
    wanted, _ = run_of(HYBRID).train(4)
    run = run_of(HYBRID, parallel={"context": 2, "tensor": 2, "fsdp": 2, "zero": 3})
    order = run.step.layout.plan.context_order
    assert order.name == "contiguous" and "retention" in order.reason
    assert list(run.step.layout.plan.attention) == ["full"]
    found, _ = run.train(4)
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    assert wanted[3] < wanted[0]


def test_what_it_declares_is_counted():
    model = run_of().config.model
    names = [one.name for one in declare_layer(model).activations]
    assert names[:2] == ["layer_input", "retention_input"] and "retention_residual" in names
    sizes = activation_bytes(layer_shape(run_of().config, run_of().step.layout.plan.axes, rows=8))
    assert sizes["retention_output"] == sizes["retention_query"]
    flops = lambda length: flops_per_step(model, 256, causal_pairs(model, 256, length), 64)
    # A token, layer, and number of the state takes a multiplication and an addition to update and to read.
    matmuls = 2 * (5 * 32 * 32 + 3 * 32 * 48) + 32 * 64
    assert flops(32) == flops(64) == 256 * (6 * matmuls + 3 * 2 * 4 * 8 * 4 * 4)


class Marked(retention.Retention):
    """A mixer that reads a field of its own of the batch: marked tokens count twice."""

    fields = (Field("marked", "float32"),)

    def __call__(self, x: jax.Array, context: Context, ops: Ops) -> Output:
        return super().__call__(x * (1 + context.tokens.fields["marked"][..., None]), context, ops)


@pytest.mark.parametrize("optional", [False, True])
def test_a_field_that_it_reads_is_in_every_batch(optional: bool, monkeypatch: pytest.MonkeyPatch):
    """Also one that is optional, for which `data` has no key."""
    monkeypatch.setitem(MIXERS, "marked", "tests.extending.test_retention:Marked")
    monkeypatch.setattr(Marked, "fields", (Field("marked", "float32", optional=optional),))
    run = run_of({"mixer": "marked"})
    with refused("marked", "float32", "by row and token"):
        run.place(run.rows(0))
    losses, state = [], run.step.residency.initial_state()
    for value in (0.0, 1.0):
        batch = run.place(run.rows(0) | {"marked": np.full((8, 32), value, np.float32)})
        losses.append(float(run.step.gradients(state, batch)[0]))
    assert losses[0] != losses[1]


def test_what_it_cannot_be_is_refused():
    with refused("model.kv_heads", "4", "retention"):
        run_of({"kv_heads": 4})
    with refused("parallel.context_order", "zigzag", "retention", "contiguous"):
        run_of(parallel={"context": 2, "context_order": "zigzag"})
    with refused("model.mixer", "retentoin", "retention"):
        load_config(None, ["model.mixer=retentoin"])
    with refused("model.mixer", "retention", "model.latent_attention"):
        run_of({"latent_attention": LatentAttentionConfig(kv_rank=4)})

"""A mixer registered from outside the package: a float64 recurrence, token by token, on any layout; and its decode."""

from dataclasses import asdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.config import load_config
from jaxpar.config.mappings.latent_attention import LatentAttentionConfig
from jaxpar.config.mappings.linear_attention import LinearAttentionConfig
from jaxpar.config.mappings.overlap import OverlapConfig
from jaxpar.config.parts import MIXERS
from jaxpar.config.schema.model import Pattern
from jaxpar.layers.block import Context
from jaxpar.layers.declared import declare_layer
from jaxpar.layers.linear_attention import recurrence
from jaxpar.layers.ops.plain import Ops
from jaxpar.memory.layer_shape import activation_bytes
from jaxpar.model.flops import causal_pairs, flops_per_step
from jaxpar.runtime.batch import Field
from jaxpar.runtime.passes import Output
from tests.decoding import assert_decodes
from tests.extending import hgrn2
from tests.memory.shapes import layer_shape
from tests.packed_rows import packed_rows
from tests.reference import decoder64, norms64
from tests.sentences import refused
from tests.small_run import SmallRun, small
from tests.training.parity.one_device import assert_close

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
    "kinds": {"state": {"mixer": "hgrn2"}, "full": {}},
    "pattern": Pattern(("state", "full")),
}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry of the registry and small chunks, for the time of a test."""
    monkeypatch.setitem(MIXERS, "hgrn2", hgrn2.MIXER)
    monkeypatch.setattr(recurrence, "CHUNK", 4)
    monkeypatch.setattr(recurrence, "BLOCK", 2)


def run_of(model: dict[str, Any] | None = None, **sections: dict[str, Any]) -> SmallRun:
    return SmallRun(small(model={"layers": 2, "mixer": "hgrn2"} | (model or {}), **sections))


def hgrn2_64(x: Any, weights: Any, options: Any, batch: Any, layer: int) -> Any:
    """The recurrence of arXiv:2404.07904, section 3, one token after another."""
    into = lambda name: jnp.einsum("bse,ehd->bshd", x, weights[name])
    least = layer / options["layers"]
    forget = least + (1 - least) * jax.nn.sigmoid(into("forget"))
    continues = jnp.pad(batch["segments"][:, 1:] == batch["segments"][:, :-1], ((0, 0), (1, 0)))

    def token(state: Any, xs: Any) -> Any:
        q, f, v, continues = xs
        state = jnp.where(continues, 1.0, 0.0)[:, None, None, None] * f[..., None] * state
        state += jnp.einsum("bhk,bhv->bhkv", 1 - f, v)
        return state, jnp.einsum("bhk,bhkv->bhv", q, state)

    ahead = (jax.nn.silu(into("query")), forget, into("value"), continues)
    ahead = jax.tree.map(lambda each: jnp.moveaxis(each, 1, 0), ahead)
    _, heads, width = ahead[0].shape[1:]
    _, out = jax.lax.scan(token, jnp.zeros((len(x), heads, width, width), x.dtype), ahead)
    out = norms64.rms_norm(jnp.moveaxis(out, 0, 1), weights["output_norm"], options["norm_epsilon"])
    return jnp.einsum("bshd,hde->bse", out, weights["output"])


def renamed(weights: Any, old: str, new: str) -> Any:
    """A tree of weights whose layers have a mixer under another name."""
    layers = {name.replace(old, new): tree for name, tree in weights["layers"]["all"].items()}
    return weights | {"layers": {"all": layers}}


@pytest.mark.matrix(quick=("context and tensor",), ci=3)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_loss_and_gradients_equal_a_recurrence_in_float64(layout: str, monkeypatch: pytest.MonkeyPatch):
    layers = iter(range(1000))
    monkeypatch.setattr(decoder64, "attention", lambda *inputs: hgrn2_64(*inputs, layer=next(layers) % 2))
    decoder64._compiled.cache_clear()
    # The norm of an output that is almost 0 enlarges rounding; and compiled references are kept by their options.
    run = run_of({"norm_epsilon": 1e-2}, parallel=LAYOUTS[layout])
    batch, state = packed_rows(run), run.step.residency.initial_state()
    weights = renamed(run.by_layer(state.master), "mixer", "attention")
    wanted, gradients = decoder64.loss_and_gradients(weights, asdict(run.config.model), batch)
    decoder64._compiled.cache_clear()
    loss, found = run.step.gradients(state, run.place(batch))
    assert_close(loss, wanted, run.by_layer(found), renamed(gradients, "attention", "mixer"))


@pytest.mark.long
@pytest.mark.parametrize("parallel", [{}, {"context": 2, "tensor": 2}], ids=["one device", "context and tensor"])
def test_decode_equals_the_parallel_form_for_200_tokens(parallel: dict[str, Any]):
    assert_decodes(HYBRID, parallel)


@pytest.mark.long
def test_a_hybrid_of_hgrn2_and_attention_trains_alike_on_a_split_mesh():
    wanted, _ = run_of(HYBRID).train(4)
    run = run_of(HYBRID, parallel={"context": 2, "tensor": 2, "fsdp": 2, "zero": 3})
    order = run.step.layout.plan.context_order
    assert order.name == "contiguous" and "hgrn2" in order.reason
    assert list(run.step.layout.plan.attention) == ["full"]
    found, _ = run.train(4)
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    assert wanted[3] < wanted[0]


def test_what_it_declares_is_counted():
    model = run_of().config.model
    names = [one.name for one in declare_layer(model).activations]
    assert names[:2] == ["layer_input", "mixer_input"] and "mixer_residual" in names
    sizes = activation_bytes(layer_shape(run_of().config, run_of().step.layout.plan.axes, rows=8))
    assert sizes["linear_output"] == sizes["linear_forget"]
    flops = lambda length: flops_per_step(model, 256, causal_pairs(model, 256, length), 64)
    # A token, layer, and number of the state takes a multiplication and an addition to update and to read.
    matmuls = 2 * (4 * 32 * 32 + 3 * 32 * 48) + 32 * 64
    assert flops(32) == flops(64) == 256 * (6 * matmuls + 3 * 2 * 4 * 8 * 4 * 4)


class Marked(hgrn2.HGRN2):
    """A mixer that reads a field of its own of the batch: marked tokens count twice."""

    fields = (Field("marked", "float32"),)

    def __call__(self, x: jax.Array, context: Context, ops: Ops) -> Output:
        return super().__call__(x * (1 + context.tokens.fields["marked"][..., None]), context, ops)


@pytest.mark.parametrize("optional", [False, True])
def test_a_field_that_it_reads_is_in_every_batch(optional: bool, monkeypatch: pytest.MonkeyPatch):
    """Also one that is optional, for which `data` has no key."""
    monkeypatch.setitem(MIXERS, "marked", "tests.extending.test_hgrn2:Marked")
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
    shared = LinearAttentionConfig(key_heads=4)
    with refused("model.linear_attention.key_heads: 4", "8", "hgrn2"):
        run_of({"linear_attention": shared})
    with refused("model.kinds.state.linear_attention.key_heads: 4", "8", "hgrn2"):
        run_of(HYBRID | {"kinds": {"state": {"mixer": "hgrn2", "linear_attention": {"key_heads": 4}}, "full": {}}})
    with refused("parallel.context_order", "zigzag", "hgrn2", "contiguous"):
        run_of(parallel={"context": 2, "context_order": "zigzag"})
    with refused("model.mixer", "hgrn", "hgrn2"):
        load_config(None, ["model.mixer=hgrn"])
    with refused("model.mixer", "hgrn2", "model.latent_attention"):
        run_of({"latent_attention": LatentAttentionConfig(kv_rank=4)})

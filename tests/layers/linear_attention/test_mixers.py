"""Mixers with a state: recurrences in float64, token by token, on any layout; and their decode."""

from dataclasses import asdict, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.config.mappings.linear_attention import LinearAttentionConfig
from jaxpar.config.plan import AxisSizes
from jaxpar.config.schema.model import LoraConfig, ModelConfig, Pattern
from jaxpar.layers.adapters import adaptable, adapted
from jaxpar.layers.declared import declare_layer
from jaxpar.layers.linear_attention import recurrence
from jaxpar.memory.layer_shape import layer_shapes
from tests.decoding import assert_decodes
from tests.layers.linear_attention import mixers64
from tests.layers.linear_attention.mixers64 import MIXERS
from tests.packed_rows import packed_rows
from tests.reference import decoder64
from tests.sentences import refused
from tests.small_run import SMALL, SmallRun, small
from tests.training.parity.one_device import TOLERANCE, assert_close

LAYOUTS: dict[str, dict[str, Any]] = {
    "context and tensor": {"context": 4, "tensor": 2, "microbatches": 2},
    "one device": {},
    "eight context ranks": {"context": 8},
    "context and fsdp": {"context": 2, "fsdp": 4, "zero": 3},
    "pipe": {"pipe": 2, "microbatches": 2},
    "split backward": {"pipe": 2, "microbatches": 4, "schedule": "zb-h1"},
}
FACTORED = "gla", "relu_gla", "kimi_delta"
"""Mixers with products of two matrices, whose backward is not split."""
ROWS = [
    (mixer, layout) for mixer in MIXERS for layout in LAYOUTS if mixer not in FACTORED or layout != "split backward"
]
SHARED_KEYS = LinearAttentionConfig(heads=8, key_heads=2, key_dim=8, value_dim=4)
"""Four heads of values for each of keys."""
SIZES = {
    "kimi_delta": LinearAttentionConfig(key_dim=8), "short_conv": LinearAttentionConfig(heads=8, value_dim=4, taps=3),
    "gated_deltanet": replace(SHARED_KEYS, taps=2),
}  # fmt: skip
"""Configurations of mixers that have other sizes."""


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrence, "CHUNK", 4)
    monkeypatch.setattr(recurrence, "BLOCK", 2)


def options_of(mixer: str) -> dict[str, Any]:
    linear = SIZES.get(mixer, SHARED_KEYS)
    biases = {"attention_bias": "qkv"} if mixer == "relu_gla" else {}
    return {"layers": 2, "mixer": mixer, "linear_attention": linear} | biases


def run_of(mixer: str, model: dict[str, Any] | None = None, **sections: dict[str, Any]) -> SmallRun:
    return SmallRun(small(model=options_of(mixer) | (model or {}), **sections))


def run_model(mixer: str, **options: Any) -> ModelConfig:
    return small(model=options_of(mixer) | options).model


def hybrid(mixer: str) -> dict[str, Any]:
    pattern = Pattern(("state", "full"))
    return {"mixer": "attention", "kinds": {"state": {"mixer": mixer}, "full": {}}, "pattern": pattern}


def as_attention(weights: Any) -> Any:
    """A tree of weights with the names that the reference has for those of attention."""
    layers = {name.replace("mixer", "attention"): tree for name, tree in weights["layers"]["all"].items()}
    return weights | {"layers": {"all": layers}}


def shaken(weights: Any) -> Any:
    """Weights whose vectors are not what they begin with, so that each of them matters."""
    rng = np.random.default_rng(0)
    vectors = ("bias", "norm", "skip", "rate", "scale")
    shift = lambda path, x: (
        x + 0.1 * rng.normal(size=x.shape).astype(np.float32) if str(path[-1].key).endswith(vectors) else x
    )
    return jax.tree_util.tree_map_with_path(shift, jax.device_get(weights))


def assert_equals_float64(mixer: str, parallel: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> SmallRun:
    """Loss and gradients of packed documents are those of the recurrence; returns the run."""
    # The norm of an output that is almost 0 enlarges rounding.
    run = run_of(mixer, {"norm_epsilon": 1e-2}, parallel=parallel)
    layers = iter(range(1000))
    monkeypatch.setattr(decoder64, "attention", lambda *inputs: MIXERS[mixer](*inputs, layer=next(layers) % 2))
    decoder64._compiled.cache_clear()
    batch, state = packed_rows(run), run.step.residency.initial_state()
    master = jax.tree.map(lambda new, old: jax.device_put(new, old.sharding), shaken(state.master), state.master)
    wanted, gradients = decoder64.loss_and_gradients(
        as_attention(run.by_layer(master)), asdict(run.config.model), batch
    )
    decoder64._compiled.cache_clear()
    loss, found = run.step.gradients(state._replace(master=master), run.place(batch))
    assert_close(loss, wanted, as_attention(run.by_layer(found)), gradients)
    return run


@pytest.mark.matrix(quick=(), ci=5)
@pytest.mark.parametrize(("mixer", "layout"), ROWS)
def test_loss_and_gradients_equal_a_recurrence_in_float64(mixer: str, layout: str, monkeypatch: pytest.MonkeyPatch):
    assert_equals_float64(mixer, LAYOUTS[layout], monkeypatch)


@pytest.mark.matrix(quick=(), ci=6)
@pytest.mark.parametrize("parallel", [{}, {"context": 2, "tensor": 2}], ids=["one device", "context and tensor"])
@pytest.mark.parametrize("mixer", MIXERS)
def test_decode_equals_the_parallel_form_for_200_tokens(mixer: str, parallel: dict[str, Any]):
    assert_decodes(options_of(mixer) | hybrid(mixer), parallel)


DECAYS = 0.0, -0.01, -1.0, -10.0, -20.0, -40.0, -80.0


@pytest.mark.matrix(quick=("delta rule-of each dim",), ci=2)
@pytest.mark.parametrize("width", [1, 6], ids=["of a head", "of each dim"])
@pytest.mark.parametrize("rule", [False, True], ids=["sums", "delta rule"])
def test_outputs_and_gradients_equal_float64_at_any_decay(width: int, rule: bool, monkeypatch: pytest.MonkeyPatch):
    """Decays are drawn between 0 and so much. Exponentials of running sums alone would overflow, as 64 tokens at -80
    are a factor of exp(5120); and float32 has such a sum to 2e-4, which differences of sums would inherit. At -12 what
    a token gives to the next is 6e-6 of what it gives to itself. Decays of 0 make ties."""
    monkeypatch.undo()  # chunks and blocks of the size that runs
    rng, segments = np.random.default_rng(0), np.ones((1, 128), np.int32)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
    q, k, v, out = (draw(1, 128, 2, 6) for _ in range(4))
    rates = rng.random((1, 128, 2)).astype(np.float32)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)

    def by_chunks(q: Any, k: Any, v: Any, gate: Any, rates: Any) -> Any:
        streams, zeros = recurrence.Streams(q, k, v, gate, rates if rule else None), jnp.zeros((1, 2, 6, 6))
        found, _ = recurrence.scan(streams, jnp.asarray(segments), zeros, jnp.asarray(segments[:, 0]))
        return jnp.sum(found * out), found

    def by_token(q: Any, k: Any, v: Any, gate: Any, rates: Any) -> Any:
        batch = {"segments": jnp.asarray(segments)}
        found = mixers64.recurrence(q, k, v, gate, batch, rates if rule else None)
        return jnp.sum(found * out), found

    programs = [jax.jit(jax.grad(one, argnums=(0, 1, 2, 3, 4), has_aux=True)) for one in (by_chunks, by_token)]
    for least in DECAYS:
        gate = (least * rng.random((1, 128, 2, width))).astype(np.float32)
        found = jax.tree.leaves(programs[0](q, k, v, gate, rates))
        with jax.enable_x64():
            exact = [jnp.asarray(x, jnp.float64) for x in (q, k, v, gate, rates)]
            wanted = [np.asarray(x) for x in jax.tree.leaves(programs[1](*exact))]
        for one, other in zip(found, wanted, strict=True):
            assert np.abs(one - other).max() <= TOLERANCE * np.abs(other).max(), least


@pytest.mark.parametrize("size", [7, 64])
def test_the_inverse_of_a_chunk_is_exact_also_for_equal_keys(size: int):
    """Powers of the matrix of equal keys grow beyond float32 before they cancel; blocks do not."""
    inverse = jax.jit(recurrence._inverse)
    for lower in (
        np.tril(np.random.default_rng(0).normal(size=(2, size, size)), -1),
        np.tri(size, k=-1) + np.zeros((2, 1, 1)),
    ):
        wanted = np.linalg.inv(np.eye(size) + lower)
        found = inverse(jnp.asarray(lower, jnp.float32))
        np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("mixer", MIXERS)
def test_lora_has_factors_of_all_projections_but_products_of_two_and_numbers_of_heads(mixer: str):
    model = run_model(mixer)
    part = declare_layer(model).parts[0]
    gate = set[str]() if mixer in ("kimi_delta", "relu_gla") else {"gate"}
    others = {"entry"} if mixer == "short_conv" else {"query", "key"}
    assert set(adaptable(part)) == {"value", "output"} | others | gate
    factors = [name for name in adapted(part, LoraConfig(rank=2)).weights if name.endswith(("lora_a", "lora_b"))]
    assert len(factors) == 2 * len(adaptable(part))
    config = replace(SMALL, model=model, lora=LoraConfig(rank=2))
    (shape,) = layer_shapes(config, AxisSizes(), 8).values()
    assert shape.around_matmuls > 0


def test_a_matrix_can_be_a_product_of_two_by_the_configuration_too():
    part = declare_layer(run_model("gla", low_rank={"query": 4})).parts[0]
    assert part.is_factored("query") and part.is_factored("decay") and not part.is_factored("key")
    with refused("model.low_rank", "rate"):
        run_of("gated_deltanet", {"low_rank": {"rate": 2}})


@pytest.mark.parametrize("mixer", FACTORED)
def test_a_backward_with_products_of_two_is_not_split(mixer: str):
    """The gradient of one factor needs the other; a pipeline of layers that are alike, or of kinds."""
    for model in ({}, hybrid(mixer) | {"layers": 4}):
        with refused("parallel.schedule: zb-h1", "decay", "products of two matrices", "1f1b"):
            run_of(mixer, model, parallel=LAYOUTS["split backward"])


def test_settings_that_no_layer_reads_are_refused():
    settings = {"qk_norm": True, "attention_bias": "qkv", "attention_sinks": True, "attention_scale": 0.5}
    for key, value in settings.items():
        with refused(f"model.{key}", "mamba2"):
            run_of("mamba2", {key: value})
        assert run_of("mamba2", hybrid("mamba2") | {key: value}).config.model, "layers of attention read it"
    with refused("model.linear_attention", "attention"):
        run_of("attention")


def test_what_they_cannot_be_is_refused():
    with refused("model.linear_attention.key_heads", "3", "8"):
        run_of("gla", {"linear_attention": LinearAttentionConfig(key_heads=3)})
    with refused("model.linear_attention.key_heads", "2", "8", "kimi_delta"):
        run_of("kimi_delta", {"linear_attention": SHARED_KEYS})
    with refused("model.linear_attention.least_step", "0.1", "gla"):
        run_of("gla", {"linear_attention": LinearAttentionConfig(least_step=0.1)})
    with refused("model.linear_attention.taps", "3", "gla", "4"):
        run_of("gla", {"linear_attention": LinearAttentionConfig(taps=3)})
    with refused("model.linear_attention.key_dim", "8", "short_conv"):
        run_of("short_conv", {"linear_attention": LinearAttentionConfig(key_dim=8)})
    with refused("model.attention_bias: true", "relu_gla", "qkv"):
        run_of("relu_gla", {"attention_bias": True})
    with refused("model.window", "16", "mamba2"):
        run_of("mamba2", {"window": 16})
    with refused("model.linear_attention.key_dim: 2", "4", "rope.partial"):
        run_of("retention", {"linear_attention": LinearAttentionConfig(key_dim=2)})
    assert run_of("retention", {"linear_attention": LinearAttentionConfig(key_dim=2), "position": "none"})
    with refused("parallel.context_order", "zigzag", "gla", "contiguous"):
        run_of("gla", parallel={"context": 2, "context_order": "zigzag"})
    with refused("parallel.context_order: zigzag", "model.kinds.state.mixer: gla", "contiguous"):
        run_of("gla", hybrid("gla"), parallel={"context": 2, "context_order": "zigzag"})
    with refused("model.linear_attention.key_heads", "2", "parallel.tensor", "4"):
        run_of("gla", parallel={"tensor": 4})
    with refused("parallel.context", "2 tokens", "3"):
        run_of("mamba2", parallel={"context": 8}, data={"sequence_length": 16}).loss_and_gradients()


@pytest.mark.parametrize(
    ("mixer", "kind", "words"),
    [
        ("mamba2", {"window": 16}, ("model.kinds.state.window: 16", "model.kinds.state.mixer: mamba2")),
        ("short_conv", {"window": 16}, ("model.kinds.state.window", "16", "short_conv", "4")),
        ("gla", {"linear_attention": {"key_heads": 3}}, ("model.kinds.state.linear_attention.key_heads: 3", "8")),
        ("kimi_delta", {"linear_attention": {"key_heads": 2}}, ("model.kinds.state.linear_attention.key_heads: 2",)),
        ("retention", {"linear_attention": {"key_dim": 2}}, ("model.kinds.state.linear_attention.key_dim: 2",)),
    ],
)
def test_a_refusal_names_the_key_of_the_kind(mixer: str, kind: dict[str, Any], words: tuple[str, ...]):
    pattern = Pattern(("state", "full"))
    kinds = {"kinds": {"state": {"mixer": mixer} | kind, "full": {"window": 8}}, "pattern": pattern}
    with refused(*words):
        SmallRun(small(model={"layers": 2} | kinds))

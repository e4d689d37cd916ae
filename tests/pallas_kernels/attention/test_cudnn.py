"""What is asked of cuDNN, and what a backward keeps of it; cuDNN itself runs on GPUs only."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, PartitionSpec

from pallas_kernels.attention import CHECKPOINT_NAMES, attention, cudnn
from pallas_kernels.masks import Mask
from tests.sentences import refused

SLOTS = np.tile(np.arange(16, dtype=np.int32), (2, 1))
TOKENS = {"q_indices": SLOTS, "kv_indices": SLOTS}


@pytest.fixture
def traceable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets JAX trace its cuDNN calls on a machine without cuDNN: it asks for the version before it traces."""
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91900)


def random_inputs(dtype: Any = jnp.float32, value_width: int = 8) -> tuple[jax.Array, jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    sizes = (4, 8), (2, 8), (2, value_width)
    q, k, v = (jnp.asarray(rng.normal(size=(2, 16, heads, width)), dtype) for heads, width in sizes)
    return q, k, v


@pytest.mark.parametrize(
    ("mask", "value_width"),
    [(Mask(), 5), (Mask(causal=False), 8), (Mask(window=1), 8), (Mask(window=5), 5), (Mask(window=99), 8)],
    ids=str,
)
def test_the_arguments_mean_our_mask(mask: Mask, value_width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX's own implementation in XLA takes the same arguments as cuDNN and shows what they mean."""
    in_xla = jax.nn.dot_product_attention

    def stand_in(*args: Any, implementation: str, **options: Any) -> jax.Array:
        assert implementation == "cudnn"
        return in_xla(*args, implementation="xla", **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", stand_in)
    inputs = random_inputs(value_width=value_width)
    gradient = lambda attend: jax.grad(lambda q, k, v: (attend(q, k, v) ** 2).sum(), (0, 1, 2))(*inputs)
    found = partial(cudnn.attend, mask=mask, scale=0.3, **TOKENS)
    expected = partial(attention, mask=mask, scale=0.3, **TOKENS)
    np.testing.assert_allclose(found(*inputs), expected(*inputs), atol=1e-5)
    for have, want in zip(gradient(found), gradient(expected), strict=True):
        np.testing.assert_allclose(have, want, atol=1e-5)


def test_the_window_that_reaches_cudnn_counts_the_token_itself(traceable: None) -> None:
    """cuDNN keeps keys in (query - sliding_window_length, query], which are sliding_window_length of them."""
    attend = partial(cudnn.attend, mask=Mask(window=5), **TOKENS)
    traced = jax.make_jaxpr(attend)(*random_inputs(jnp.bfloat16))
    assert "sliding_window_length=5" in str(traced) and "MaskType.CAUSAL" in str(traced)


@pytest.mark.parametrize("value_width", [8, 5])
def test_a_policy_that_saves_the_named_results_does_not_run_cudnn_again(traceable: None, value_width: int) -> None:
    mesh = jax.make_mesh((2, 4), ("data", "heads"), axis_types=(AxisType.Auto,) * 2)
    layout, whole = PartitionSpec("data", None, "heads"), PartitionSpec()

    def layer(q: jax.Array, k: jax.Array, v: jax.Array, w: jax.Array) -> jax.Array:
        q, k, v = (checkpoint_name(x @ w, "projection") for x in (q, k, v))
        v = v[..., :value_width]
        return (cudnn.attend(q, k, v, mask=Mask(), **TOKENS).astype(jnp.float32) ** 2).sum()

    def forwards(*saved: str) -> int:
        policy = jax.checkpoint_policies.save_only_these_names(*saved)
        step = jax.grad(jax.checkpoint(layer, policy=policy), (0, 1, 2, 3))
        layouts = (layout, layout, layout, whole)
        mapped = jax.shard_map(step, mesh=mesh, in_specs=layouts, out_specs=layouts)
        x, w = jax.ShapeDtypeStruct((2, 16, 4, 8), jnp.bfloat16), jax.ShapeDtypeStruct((8, 8), jnp.bfloat16)
        text = str(jax.make_jaxpr(mapped)(x, x, x, w))
        assert text.count("dot_product_attention_bwd_wrapper[") == 1
        return text.count("dot_product_attention_fwd_wrapper[")

    assert forwards("projection", *CHECKPOINT_NAMES) == 1
    assert [forwards("projection", name) for name in CHECKPOINT_NAMES] == [2, 2]


def test_output_and_values_are_kept_as_narrow_as_they_are(traceable: None) -> None:
    """Zeros fill them for cuDNN alone: what the backward keeps has the widths of the arguments."""
    attend = partial(cudnn.attend, mask=Mask(), **TOKENS)
    pull = jax.eval_shape(lambda *x: jax.vjp(attend, *x)[1], *random_inputs(jnp.bfloat16, value_width=5))
    kept = [leaf.shape for leaf in jax.tree.leaves(pull) if leaf.ndim == 4 and leaf.size]
    assert sorted(kept) == [(2, 16, 2, 5), (2, 16, 2, 8), (2, 16, 4, 5), (2, 16, 4, 8)]


@pytest.mark.parametrize(
    ("mask", "softcap"),
    [
        (Mask(causal=False, segmented=True), None),
        (Mask(prefix=True), None),
        (Mask(), 5.0),
        (Mask(causal=False, window=3), None),
    ],
    ids=["packed", "prefix", "softcap", "window-both-ways"],
)
def test_what_cudnn_does_not_compute_is_refused(mask: Mask, softcap: float | None) -> None:
    with refused("cuDNN", str(mask), f"softcap {softcap}", error=ValueError):
        cudnn.attend(*random_inputs(), mask=mask, softcap=softcap, **TOKENS)


def test_a_part_of_the_queries_is_refused() -> None:
    q, k, v = random_inputs()
    with pytest.raises(ValueError, match="same indices"):
        cudnn.attend(q[:, 8:], k, v, mask=Mask(), **TOKENS)


def test_a_scale_that_turns_the_order_of_scores_around_is_refused() -> None:
    with refused("cuDNN", "scale of the scores above 0", "-1", error=ValueError):
        cudnn.attend(*random_inputs(), mask=Mask(), scale=-1.0, **TOKENS)

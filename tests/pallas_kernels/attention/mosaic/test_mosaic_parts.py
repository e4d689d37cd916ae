"""The Hopper kernels over parts of the keys, as a step of a ring asks for them, in the simulator of Mosaic GPU."""

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.attention import MaskInputs, Settings, compute_delta, reference
from pallas_kernels.attention.mosaic import KERNELS
from pallas_kernels.masks import Mask
from tests.pallas_kernels.attention.mosaic.simulator import REPORTED, watch_tensor_cores
from tests.pallas_kernels.attention.mosaic.test_mosaic import FLOOR, TIMES, Case, random_inputs, run, tokens_of
from tests.pallas_kernels.dense64 import attention, pairs, worst


@pytest.mark.long
def test_parts_of_the_keys_merged_by_their_log_sum_exp_are_attention_over_all(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Queries before the second part see none of it: its output is 0 there and its log-sum-exp -inf."""
    watch_tensor_cores(monkeypatch, late_in="product_over_halves", seconds=0.1)
    case, cut = Case(Mask(segmented=True), 150, 1, 1), 80
    tokens = tokens_of(case)
    inputs = random_inputs(case, tokens)
    q, k, v, d_out, d_lse = (inputs[name] for name in ("q", "k", "v", "d_out", "d_lse"))
    options = Settings(case.mask, case.widths[0] ** -0.5, interpret=True)
    named = MaskInputs(**{name: jnp.asarray(x) for name, x in tokens.named().items()})
    assert named.kv_segments is not None
    indices, segments = named.kv_indices, named.kv_segments
    parts = [
        (k[:, part], v[:, part], named._replace(kv_indices=indices[:, part], kv_segments=segments[:, part]))
        for part in (slice(cut), slice(cut, None))
    ]

    (first, first_lse), (second, second_lse) = (KERNELS.forward(options, q, *part) for part in parts)
    assert first.dtype == second.dtype == jnp.float32, "what is merged is not rounded before"
    assert bool((second_lse[:, :cut] == -jnp.inf).all()) and not second[:, :cut].any()
    lse = jnp.logaddexp(first_lse, second_lse)
    seen = jnp.where(lse == -jnp.inf, 0.0, lse)[..., None]
    out = first * jnp.exp(first_lse[..., None] - seen) + second * jnp.exp(second_lse[..., None] - seen)

    delta = compute_delta(out, d_out, lse, d_lse)
    gradients = [KERNELS.backward(options, q, *part, lse, delta, d_out) for part in parts]
    dq = gradients[0][0] + gradients[1][0]
    dk, dv = (jnp.concatenate([of_part[place] for of_part in gradients], 1) for place in (1, 2))

    found = {"out": out, "lse": lse, "dq": dq, "dk": dk, "dv": dv}
    exact = {name: np.asarray(x, np.float64) for name, x in inputs.items()}
    expected = attention(**exact, kept=pairs(case.mask, tokens), softcap=case.softcap)
    merged = worst({name: np.asarray(x) for name, x in found.items()}, expected)
    plain = worst(run(reference.KERNELS, case, tokens, inputs), expected)
    assert all(merged[name] <= max(TIMES * plain[name], FLOOR) for name in merged), (merged, plain)
    assert REPORTED not in capfd.readouterr().out

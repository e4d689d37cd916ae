"""The reference decoder is right by arithmetic that does not go through its own derivative."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.reference import decoder64
from tests.reference.options import complete
from tests.reference.rotary64 import rotary_frequencies
from tests.reference.small import packed_batch, random_weights
from tests.reference.tree import flatten, unflatten

LLAMA = {
    "layers": 2, "embed": 8, "heads": 4, "kv_heads": 2, "head_dim": 4, "mlp": 6, "vocab": 11, "window": 3,
    "qk_norm": True, "rope_scaling": "llama3", "rope_original_length": 32, "z_loss": 0.01, "logit_softcap": 3.0,
    "attention_softcap": 2.0,
}  # fmt: skip
GPT = {
    "layers": 2, "embed": 8, "heads": 2, "mlp": 6, "vocab": 11, "norm": "layernorm", "position": "learned",
    "activation": "gelu", "attention_bias": True, "mlp_bias": True, "tied": True,
}  # fmt: skip
SQUARED = {"layers": 1, "embed": 8, "heads": 2, "mlp": 6, "vocab": 11, "activation": "relu2", "rope_scaling": "linear"}

OLMO = {
    "layers": 2, "embed": 8, "heads": 4, "kv_heads": 2, "mlp": 6, "vocab": 11, "norm_placement": "post",
    "qk_norm": "projection", "attention_bias": "qkv",
}  # fmt: skip
GEMMA = {
    "layers": 3, "embed": 8, "heads": 4, "kv_heads": 2, "mlp": 6, "vocab": 11, "norm_placement": "sandwich",
    "norm": "zero_centered_rmsnorm", "qk_norm": True, "activation": "geglu", "embedding_scale": True, "tied": True,
    "attention_scale": 0.3, "norm_epsilon": 0.3, "kinds": {"local": {"window": 2}, "global": {"rope_base": 100.0}},
    "pattern": {"unit": ["local", "global"], "suffix": ["local"]},
}  # fmt: skip


@pytest.mark.matrix(quick=1, ci=1)
@pytest.mark.parametrize("options", [LLAMA, GPT, SQUARED, OLMO, GEMMA], ids=["llama", "gpt", "relu2", "olmo", "gemma"])
def test_gradient_equals_the_slope_of_the_loss_along_a_random_direction_of_every_leaf(options: dict) -> None:
    weights, batch = random_weights(options, padded_vocab=13), packed_batch(options["vocab"])
    _, gradients = decoder64.loss_and_gradients(weights, options, batch)
    generator, step = np.random.default_rng(1), 1e-5
    for path, gradient in flatten(gradients).items():
        direction = generator.standard_normal(gradient.shape)

        def moved(distance: float, path: tuple = path, direction: np.ndarray = direction) -> float:
            leaves = flatten(weights)
            leaves[path] = leaves[path] + distance * direction
            return decoder64.loss(unflatten(leaves), options, batch)

        slope = (moved(step) - moved(-step)) / (2 * step)
        expected = float(np.sum(gradient * direction))
        assert slope == pytest.approx(expected, rel=1e-6, abs=1e-8), ".".join(path)
        # A key bias adds the same to all scores of a query, which the softmax does not see (without norm or rotation).
        if path[-1] != "key_bias":
            assert np.any(gradient != 0), f"{'.'.join(path)} does not reach the loss"


def test_padded_vocabulary_is_outside_the_loss_and_gets_no_gradient() -> None:
    batch = packed_batch(11)
    weights = random_weights(SQUARED, padded_vocab=16)
    trimmed = copy.deepcopy(weights)
    trimmed["embedding"]["tokens"] = weights["embedding"]["tokens"][:11]
    trimmed["head"]["weight"] = weights["head"]["weight"][:, :11]
    assert decoder64.loss(weights, SQUARED, batch) == pytest.approx(decoder64.loss(trimmed, SQUARED, batch), rel=1e-14)
    _, gradients = decoder64.loss_and_gradients(weights, SQUARED, batch)
    assert not gradients["head"]["weight"][:, 11:].any()
    assert not gradients["embedding"]["tokens"][11:].any()


def test_documents_that_share_a_row_give_the_logits_that_they_give_alone() -> None:
    batch, weights = packed_batch(11), random_weights(LLAMA, padded_vocab=13)
    packed = decoder64.logits(weights, LLAMA, batch)[0, :, :11]
    for part in (slice(0, 3), slice(3, 8)):
        alone = decoder64.logits(weights, LLAMA, decoder64.plain_batch(batch["tokens"][:1, part]))[0, :, :11]
        np.testing.assert_allclose(packed[part], alone, rtol=0, atol=1e-13)


def test_a_token_reaches_the_later_ones_inside_the_window_only() -> None:
    options = SQUARED | {"window": 3}
    weights = random_weights(options, padded_vocab=11)
    tokens = np.arange(8)[None] % 11
    changed = tokens.copy()
    changed[0, 2] = 9
    before, after = (decoder64.logits(weights, options, decoder64.plain_batch(t)) for t in (tokens, changed))
    touched = np.any(before != after, axis=-1)[0]
    np.testing.assert_array_equal(touched, [False, False, True, True, True, False, False, False])


def test_each_layer_is_of_the_kind_that_the_pattern_gives_it() -> None:
    """Kinds of equal keys are one model; with the window in the middle layer alone, the middle one alone has it."""
    weights, batch = random_weights(GEMMA, padded_vocab=11), packed_batch(11)
    alike = GEMMA | {"kinds": {"local": {"window": 2}, "global": {"window": 2}}}
    plain = {key: value for key, value in GEMMA.items() if key not in ("kinds", "pattern")} | {"window": 2}
    np.testing.assert_array_equal(
        decoder64.logits(weights, alike, batch), decoder64.logits(weights, plain, batch), strict=True
    )
    options = complete(GEMMA | {"pattern": {"prefix": ["global"], "unit": ["local"], "suffix": ["global"]}})
    assert [dict(own) for own in options["of_layers"]] == [{"rope_base": 100.0}, {"window": 2}, {"rope_base": 100.0}]


def test_loss_of_equal_logits_is_the_log_of_the_vocabulary_plus_the_z_loss() -> None:
    options = SQUARED | {"z_loss": 0.5}
    weights = random_weights(options, padded_vocab=16)
    weights["head"]["weight"] *= 0
    expected = np.log(11) + 0.5 * np.log(11) ** 2
    assert decoder64.loss(weights, options, packed_batch(11)) == pytest.approx(expected, rel=1e-14)


def test_llama3_scaling_keeps_short_wavelengths_and_stretches_long_ones() -> None:
    options = complete(LLAMA | {"head_dim": 64, "rope_original_length": 128})
    plain = rotary_frequencies(options | {"rope_scaling": "none"}, 256)
    scaled = rotary_frequencies(options, 256)
    wavelength = 2 * np.pi / plain
    ratio = plain / scaled
    np.testing.assert_allclose(ratio[wavelength < 128 / 4.0], 1.0, rtol=1e-14)
    np.testing.assert_allclose(ratio[wavelength > 128 / 1.0], 8.0, rtol=1e-14)
    between = ratio[(wavelength > 32) & (wavelength < 128)]
    assert between.size and np.all((between > 1) & (between < 8))


def test_float64_stays_inside_the_reference() -> None:
    loss, gradients = decoder64.loss_and_gradients(random_weights(GPT, padded_vocab=11), GPT, packed_batch(11))
    assert isinstance(loss, float)
    assert {leaf.dtype for leaf in flatten(gradients).values()} == {np.dtype(np.float64)}
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(gradients))
    assert jnp.ones(1).dtype == jnp.float32

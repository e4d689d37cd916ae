"""The filters and penalties of sampling, against their definitions in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.generation.sampling import DTYPES, Draws, Sampling, draw, filtered, penalized
from tests.sentences import refused

LOGITS = np.array([[2.0, 1.0, 0.0, -1.0, -np.inf], [0.0, 0.0, 3.0, -2.0, -np.inf]], np.float32)


def draws_of(rows: int, **settings: float) -> Draws:
    values = {
        "seed": 0, "temperature": 1.0, "repetition_penalty": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0,
        "tempered": False, "adapter": -1,
    } | settings  # fmt: skip
    columns = {name: np.full(rows, value) for name, value in values.items()} | {"stream": np.arange(rows)}
    return Draws(**{name: jnp.asarray(columns[name], dtype) for name, dtype in DTYPES._asdict().items()})


def kept(**settings: float) -> list[list[int]]:
    found = np.asarray(filtered(jnp.asarray(LOGITS), draws_of(len(LOGITS), **settings)))
    return [np.flatnonzero(np.isfinite(row)).tolist() for row in found]


def test_top_k_keeps_the_likeliest_and_all_that_are_as_likely():
    assert kept(top_k=1) == [[0], [2]] and kept(top_k=2) == [[0, 1], [0, 1, 2]]
    assert kept(top_k=0) == kept(top_k=100) == [[0, 1, 2, 3], [0, 1, 2, 3]]


def test_top_p_keeps_the_fewest_whose_probabilities_add_up():
    probabilities = np.exp(LOGITS[0, :4]) / np.exp(LOGITS[0, :4]).sum()
    assert kept(top_p=float(probabilities[0]) - 1e-3)[0] == [0]
    assert kept(top_p=float(probabilities[0]) + 1e-3)[0] == [0, 1] and kept(top_p=1e-6) == [[0], [2]]


def test_min_p_is_relative_to_the_likeliest():
    assert kept(min_p=float(np.exp(-1.0)) - 1e-3) == [[0, 1], [2]] and kept(min_p=1.0) == [[0], [2]]


def test_a_repetition_penalty_makes_seen_tokens_less_likely():
    seen = jnp.zeros(LOGITS.shape, bool).at[0, 0].set(True).at[0, 3].set(True)
    found = np.asarray(penalized(jnp.asarray(LOGITS), seen, jnp.full(2, 2.0)))
    assert found[0].tolist() == [1.0, 1.0, 0.0, -2.0, -np.inf] and found[1].tolist() == LOGITS[1].tolist()


def test_draws_have_the_probabilities_of_the_softmax():
    count = 4000
    logits = jnp.tile(LOGITS[:1], (count, 1))
    drawn = draw(logits, logits > np.inf, draws_of(count, temperature=0.5), jnp.ones(count, jnp.int32))
    wanted = np.exp(LOGITS[0] / 0.5) / np.exp(LOGITS[0] / 0.5).sum()
    shares = np.bincount(np.asarray(drawn.token), minlength=5) / count
    assert np.abs(shares - wanted).max() < 4 * np.sqrt(0.25 / count)
    own = LOGITS[0] - np.log(np.exp(LOGITS[0]).sum())
    np.testing.assert_allclose(drawn.log_probability, own[np.asarray(drawn.token)], rtol=1e-6)


def test_rows_are_drawn_by_their_settings_whatever_other_rows_have():
    """Rows that take the likeliest, that draw, with and without filters and penalties, side by side and alone."""
    rng = np.random.default_rng(0)
    rows, vocab = 64, 23
    logits = jnp.asarray(rng.normal(0, 2, (rows, vocab)), jnp.float32)
    seen, lengths = jnp.asarray(rng.random((rows, vocab)) < 0.3), jnp.asarray(rng.integers(1, 99, rows), jnp.int32)
    draws = Draws(
        jnp.asarray(rng.integers(0, 2**32, rows), jnp.uint32), jnp.arange(rows, dtype=jnp.int32),
        *(jnp.asarray(rng.choice(values, rows), dtype) for values, dtype in (
            ([0.0, 0.7, 1.0], "float32"), ([1.0, 1.5], "float32"), ([0, 1, 5], "int32"), ([1.0, 0.6], "float32"),
            ([0.0, 0.1], "float32"), ([False, True], "bool"), ([-1], "int32"),
        )),
    )  # fmt: skip
    together = draw(logits, seen, draws, lengths)
    one = jax.jit(draw)
    for row in range(rows):
        mine = jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], (logits, seen, draws, lengths))
        alone = one(*mine)
        assert int(alone.token[0]) == int(together.token[row])
        np.testing.assert_allclose(alone.log_probability[0], together.log_probability[row], rtol=1e-6)
    greedy = (np.asarray(draws.temperature) == 0) & (np.asarray(draws.repetition_penalty) == 1)
    np.testing.assert_array_equal(np.asarray(together.token)[greedy], np.asarray(logits).argmax(-1)[greedy])


WRONG = {"temperature": -1.0, "top_p": 1.5, "min_p": -0.1, "top_k": -1, "repetition_penalty": 0.0}


@pytest.mark.parametrize("name", WRONG)
def test_settings_out_of_range_are_refused(name: str):
    with refused(name, repr(WRONG[name])):
        Sampling(**{name: WRONG[name]})  # pyright: ignore[reportArgumentType]

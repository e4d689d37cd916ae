"""The outer optimizer against its formulas in float64, and the error of messages of few bits."""

import numpy as np
import pytest

from jaxpar.optim.outer import (
    OuterArguments,
    decode_message,
    eager_move,
    encode_message,
    fragment_sent,
    is_sent,
    message_bytes,
    mixed,
    outer_gradient,
    outer_update,
)

PLAIN = OuterArguments(rate=1.0, momentum=0.0, mix=0.0)


def test_rate_1_without_momentum_is_the_mean_of_the_islands():
    shared, islands = np.array([1.0, 2.0, -3.0]), np.random.default_rng(0).normal(size=(4, 3))
    gradient = np.mean([outer_gradient(shared, one) for one in islands], axis=0)
    for nesterov in (False, True):
        weights, _ = outer_update(shared, np.zeros(3), gradient, PLAIN, nesterov)
        np.testing.assert_allclose(weights, islands.mean(axis=0), rtol=1e-14)


@pytest.mark.parametrize("nesterov", [False, True])
def test_updates_are_those_of_sgd_with_momentum(nesterov):
    """PyTorch's formula written out: the velocity is the decaying sum of gradients, one step ahead under Nesterov."""
    rate, mu, gradients = 0.7, 0.9, np.random.default_rng(1).normal(size=5)
    weights, momentum = np.float64(2.0), np.float64(0.0)
    expected = 2.0
    for step, gradient in enumerate(gradients):
        weights, momentum = outer_update(weights, momentum, gradient, OuterArguments(rate, mu, 0.0), nesterov)
        velocity = sum(mu ** (step - past) * gradients[past] for past in range(step + 1))
        expected -= rate * (gradient + mu * velocity if nesterov else velocity)
    assert weights == pytest.approx(expected, rel=1e-12)


def drifted(start: np.ndarray, island: int, alike: bool) -> np.ndarray:
    """Weights at the end of a round: steps towards the optimum of an island, or of all."""
    return start + 0.3 * (np.linspace(-1.0, 1.0, 4) * (1 if alike else island + 1) - start)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(("islands", "alike"), [(1, False), (2, True), (3, False)])
def test_eager_updates_are_those_of_the_papers_algorithm(islands, alike, nesterov):
    """Algorithm 3 of arXiv:2502.12996 written out: an outer step of each island along the mean of its outer gradient
    and those of the others of the round before. With one island no round is late."""
    arguments, first = OuterArguments(0.7, 0.9, 0.0), np.array([0.5, -1.0, 2.0, 0.1])
    starts, momenta, before = [first] * islands, [np.zeros(4)] * islands, [np.zeros(4)] * islands
    shared, outer = first, np.zeros(4)
    mine, alone, look_ahead = [first] * islands, [np.zeros(4)] * islands, (first, np.zeros(4))
    for _ in range(6):
        now = [start - drifted(start, i, alike) for i, start in enumerate(starts)]
        mixtures = [(now[i] + sum(before) - before[i]) / islands for i in range(islands)]
        paper = [outer_update(starts[i], momenta[i], mixtures[i], arguments, nesterov) for i in range(islands)]
        starts, momenta, before = [weights for weights, _ in paper], [momentum for _, momentum in paper], now
        gradients = [outer_gradient(start, drifted(start, i, alike)) for i, start in enumerate(mine)]
        moves = [eager_move(alone[i], gradients[i], arguments, nesterov, islands) for i in range(islands)]
        mine, alone = [shared + move for move, _ in moves], [momentum for _, momentum in moves]
        np.testing.assert_allclose(mine, starts, rtol=1e-12, atol=1e-14)
        shared, outer = outer_update(shared, outer, np.mean(gradients, axis=0), arguments, nesterov)
        weights, momentum = look_ahead
        look_ahead = outer_update(weights, momentum, weights - drifted(weights, 0, alike), arguments, nesterov)
        assert islands > 1 or np.allclose(mine[0], look_ahead[0], rtol=1e-12, atol=1e-14)


def test_an_island_goes_on_with_its_share_of_both_weights():
    assert mixed(np.float64(2.0), np.float64(1.0), 0.25) == 1.25
    assert mixed(np.float32(0.1), np.float32(0.3), 0.0) == np.float32(0.3)


def test_each_fragment_is_sent_once_in_every_period():
    sent = [(step, fragment_sent(step, 12, 4)) for step in range(25) if is_sent(step, 12, 4)]
    assert sent == [(3, 0), (6, 1), (9, 2), (12, 3), (15, 0), (18, 1), (21, 2), (24, 3)]
    assert [step for step in range(25) if is_sent(step, 12, 1)] == [12, 24]


@pytest.mark.parametrize("elements", [1, 255, 700])
def test_messages_of_few_bits_are_within_their_stated_error(elements):
    rows = np.random.default_rng(elements).normal(size=(3, elements)).astype(np.float32)
    for wire, of_largest, of_itself in (("int8", 1 / 250, 0.0), ("int4", 1 / 100, 1 / 2)):
        sent = encode_message(rows, wire)
        assert sent.nbytes == 3 * message_bytes(elements, wire)
        for first in range(0, elements, 256):
            block = rows[:, first : first + 256]
            error = np.abs(np.asarray(decode_message(sent, elements, wire))[:, first : first + 256] - block)
            largest = np.abs(block).max(axis=1, keepdims=True)
            assert (error <= np.maximum(of_largest * largest, of_itself * np.abs(block))).all()
    assert encode_message(rows, None) is rows and message_bytes(elements, None) == 4 * elements


def test_a_message_of_4_bits_is_an_eighth_of_float32():
    assert message_bytes(2**20, None) / message_bytes(2**20, "int4") == pytest.approx(8, rel=0.02)

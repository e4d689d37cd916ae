"""The versioned buffer: which weights draw which batch, what is too old, and what a checkpoint has of it."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from jaxpar.rl.answers import Answer
from jaxpar.rl.prompts import Prompt
from jaxpar.rl.sampling.buffer import RolloutBuffer
from jaxpar.rl.sampling.rollouts import Rollouts, SavedRollouts


def drawn(index: int, version: int, weights: Any) -> Rollouts:
    """A batch without answers, from weights that are their version."""
    assert weights == {"version": version}
    return Rollouts(index, version, [], np.zeros((0, 1)), 0.0, 0.0, 0.0)


def taken(buffer: RolloutBuffer, versions: range) -> list[tuple[int, int]]:
    """Number and version of the batch that each version learns from."""
    batches = []
    for version in versions:
        buffer.refresh(version, {"version": version})
        batch = buffer.take(version)
        batches.append((batch.index, batch.version))
    return batches


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_a_batch_is_drawn_as_many_versions_ahead_as_the_lag(lag: int):
    """At first with the first weights; in turns it depends on the order of the calls alone."""
    buffer = RolloutBuffer(drawn, lambda weights: weights, lag)
    assert taken(buffer, range(6)) == [(index, max(0, index - lag)) for index in range(6)]
    assert buffer.following == 6 + lag and buffer.dropped == 0


@pytest.mark.parametrize("beside", [False, True])
def test_a_buffer_goes_on_from_what_was_saved(beside: bool):
    straight, first, second = (RolloutBuffer(drawn, lambda weights: weights, 2, beside=beside) for _ in range(3))
    with closing(straight), closing(first), closing(second):
        parts = taken(first, range(3))
        second.restore(first.following, first.dropped, first.settled())
        assert parts + taken(second, range(3, 7)) == taken(straight, range(7))


def test_batches_that_are_too_old_are_dropped_and_counted():
    """A run that is continued with a smaller lag has some."""
    far, near = (RolloutBuffer(drawn, lambda weights: weights, lag) for lag in (4, 1))
    taken(far, range(6))
    near.restore(far.following, far.dropped, far.settled())
    assert taken(near, range(6, 9)) == [(9, 5), (10, 7), (11, 7)] and near.dropped == 3


def test_a_sampler_that_is_behind_takes_the_newest_weights():
    """Batches that were asked for and not begun; they are not in a checkpoint, and are asked for again."""
    begins = threading.Event()

    def slow(index: int, version: int, weights: Any) -> Rollouts:
        begins.wait(30)
        return drawn(index, version, weights)

    with closing(RolloutBuffer(slow, lambda weights: weights, 2, beside=True, newest=True)) as buffer:
        buffer.refresh(0, {"version": 0})
        asked = buffer.following
        threading.Timer(0.2, begins.set).start()
        waiting = buffer.settled()
        assert [one.index for one in waiting] == [0] and (asked, buffer.following) == (3, 1)
        buffer.refresh(1, {"version": 1})
        assert [buffer.take(1).version for _ in range(3)] == [0, 1, 1]


def test_a_batch_that_begins_while_others_are_taken_back_has_all_before_it(monkeypatch: pytest.MonkeyPatch):
    """The first batch ends, and the next one that is left begins, right after one was taken back."""
    ends, others = threading.Event(), threading.Event()

    def forced(index: int, version: int, weights: Any) -> Rollouts:
        if index:
            others.set()
        ends.wait(30)
        return drawn(index, version, weights)

    def cancel(future: Future[Rollouts], cancel: Any = Future.cancel) -> bool:
        if cancelled := cancel(future):
            ends.set()
            others.wait(30)
        return cancelled

    monkeypatch.setattr(Future, "cancel", cancel)
    with closing(RolloutBuffer(forced, lambda weights: weights, 2, beside=True, newest=True)) as buffer:
        buffer.refresh(0, {"version": 0})
        assert [one.index for one in buffer.settled()] == [0, 1] and buffer.following == 2
        buffer.refresh(1, {"version": 1})
        assert [buffer.take(1).index for _ in range(3)] == [0, 1, 2]


def test_a_buffer_that_was_closed_draws_again():
    """Batches that had not begun are taken back, and asked for again with later weights."""
    ends = threading.Event()

    def slow(index: int, version: int, weights: Any) -> Rollouts:
        ends.wait(30)
        return drawn(index, version, weights)

    with closing(RolloutBuffer(slow, lambda weights: weights, 2, beside=True)) as buffer:
        buffer.refresh(0, {"version": 0})
        threading.Timer(0.2, ends.set).start()
        buffer.close()
        assert [one.name for one in threading.enumerate() if one.name.startswith("sampler")] == []
        assert buffer.following == 1
        assert buffer.beside(lambda prompts, weights: drawn(7, 3, weights), [], {"version": 3}).index == 7
        buffer.refresh(1, {"version": 1})
        batches = [buffer.take(1) for _ in range(3)]
        assert [(one.index, one.version) for one in batches] == [(0, 0), (1, 1), (2, 1)]


def test_an_error_of_the_sampler_ends_the_wait_for_it():
    def broken(index: int, version: int, weights: Any) -> Rollouts:
        raise OSError("no device")

    with closing(RolloutBuffer(broken, lambda weights: weights, 1, beside=True)) as buffer:
        buffer.refresh(0, {})
        with pytest.raises(OSError, match="no device"):
            buffer.take(0)


@pytest.mark.parametrize("routed", [False, True])
def test_batches_are_the_same_after_a_checkpoint(routed: bool):
    """Every bit of a log-probability, turns of conversations and none, rewards that are missing, experts of tokens."""
    prompts = [Prompt((1, 2), {"prompt": "a"}), Prompt((3,), {"prompt": "b"})]
    rng = np.random.default_rng(0)
    turns, rewards = (None, ((0, 2),), (), ((0, 1), (3, 4))), (0.0, 0.1, np.nan, -2.5)
    answers = [
        Answer(
            prompts[at // 2], tuple(range(at + 1)), rng.normal(size=at + 1), at != 2, turn, reward, at == 3,
            rng.integers(0, 9, (len(prompts[at // 2].tokens) + at, 3, 2), np.int32) if routed else None,
        )
        for at, (turn, reward) in enumerate(zip(turns, rewards, strict=True))
    ]  # fmt: skip
    batch = Rollouts(7, 5, answers, np.array([[0.1, np.nan], [1, 2]]), 0.5, 0.25, 0.0)
    before = [one.log_probabilities + 1 for one in answers]
    data = SavedRollouts(9, 3, [batch, batch], batch, before).to_bytes()
    again = SavedRollouts.from_bytes(data, lambda index: prompts if index == 7 else [])
    assert (again.following, again.dropped, len(again.waiting)) == (9, 3, 2)
    assert again.current is not None and again.before is not None
    for one in (again.current, *again.waiting):
        assert (one.index, one.version, one.draw_seconds, one.reward_seconds) == (7, 5, 0.5, 0.25)
        np.testing.assert_array_equal(one.rewards, batch.rewards)
        for other, answer in zip(one.answers, answers, strict=True):
            assert (other.prompt, other.tokens, other.ended) == (answer.prompt, answer.tokens, answer.ended)
            assert (other.turns, other.without_room) == (answer.turns, answer.without_room)
            np.testing.assert_array_equal(other.reward, answer.reward)
            assert routed == (other.routing is not None)
            np.testing.assert_array_equal(other.routing, answer.routing)
            np.testing.assert_array_equal(other.log_probabilities, answer.log_probabilities)
    for other, values in zip(again.before, before, strict=True):
        np.testing.assert_array_equal(other, values)

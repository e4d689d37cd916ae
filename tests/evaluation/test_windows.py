"""Windows score each token of a text once, with as much before it as they are made for."""

import pytest

from jaxpar.evaluation.windows import windows

BEGIN = 99


def test_disjoint_windows_are_those_of_lm_evaluation_harness():
    # The example in the documentation of its `loglikelihood_rolling`.
    found = list(windows(range(10), BEGIN, 4))
    assert found == [([99], [0, 1, 2, 3]), ([3], [4, 5, 6, 7]), ([5, 6, 7], [8, 9])]


def test_sliding_windows_keep_what_comes_before():
    assert list(windows(range(9), BEGIN, 4, 2)) == [
        ([99], [0, 1, 2, 3]), ([1, 2, 3], [4, 5]), ([3, 4, 5], [6, 7]), ([4, 5, 6, 7], [8]),
    ]  # fmt: skip


@pytest.mark.parametrize("length", [1, 2, 7])
@pytest.mark.parametrize("size", [0, 1, 6, 7, 8, 30])
def test_each_token_is_scored_once_by_a_forward_that_is_not_too_long(length: int, size: int):
    for stride in range(1, length + 1):
        found = list(windows(range(size), BEGIN, length, stride))
        assert [token for window in found for token in window.scored] == list(range(size))
        for before, scored in found:
            assert len(before) >= 1 and len(before) + len(scored) - 1 <= length
            first = scored[0]
            assert list(before) == [BEGIN, *range(size)][first + 1 - len(before) : first + 1]

"""A stream knows its documents, and gives a prompt."""

import numpy as np
import pytest

from jaxpar.data.stream import TokenStream, prompt

STREAM = TokenStream(np.array([7, 0, 1, 2, 3, 0, 9, 0], np.uint16), np.array([0, 2, 6]))


def test_documents_have_lengths_that_add_up():
    assert STREAM.lengths.tolist() == [2, 4, 2]


@pytest.mark.parametrize(("tokens", "expected"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (100, [1, 2, 3])])
def test_a_prompt_is_the_beginning_of_the_longest_document_without_its_end(tokens, expected):
    assert prompt(STREAM, tokens).tolist() == expected


def test_a_prompt_is_never_empty():
    assert prompt(TokenStream(np.array([4], np.uint16), np.array([0])), 5).tolist() == [4]


@pytest.mark.parametrize("starts", [[1, 2], [0, 4, 4], [0, 5, 3], [0, 8]])
def test_empty_and_disordered_documents_are_refused(starts):
    with pytest.raises(AssertionError):
        TokenStream(STREAM.tokens, np.array(starts))

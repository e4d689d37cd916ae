"""A stream knows its documents, and gives a prompt."""

import numpy as np
import pytest

from jaxpar.data.stream import TokenStream, prompt

STREAM = TokenStream(np.array([7, 0, 1, 2, 3, 0, 9, 0], np.uint16), np.array([0, 2, 6]))


@pytest.mark.parametrize(("tokens", "expected"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (100, [1, 2, 3])])
def test_a_prompt_is_the_beginning_of_the_longest_document_without_its_end(tokens, expected):
    assert prompt(STREAM, tokens).tolist() == expected


def test_a_prompt_is_never_empty():
    assert prompt(TokenStream(np.array([4], np.uint16), np.array([0])), 5).tolist() == [4]

"""A keyed permutation is one, depends on its key in every place, and looks like any other permutation."""

from collections import Counter
from itertools import permutations
from math import factorial, sqrt

import pytest

from jaxpar.data.randomness import KeyedPermutation


def listed(count: int, *key: int) -> list[int]:
    permutation = KeyedPermutation(count, *key)
    return [permutation.permute(place) for place in range(count)]


@pytest.mark.parametrize("count", [*range(1, 40), 64, 65, 1000, 4097])
def test_every_number_stands_in_one_place(count):
    assert sorted(listed(count, 3, count)) == list(range(count))


def test_numbers_of_many_digits_are_permuted():
    permutation = KeyedPermutation(10**15, 1)
    found = [permutation.permute(place) for place in (*range(1000), 10**15 - 1)]
    assert len(set(found)) == 1001 and min(found) >= 0 and max(found) < 10**15


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_all_orders_of_few_numbers_are_equally_likely(count):
    keys = 6000
    counts = Counter(tuple(listed(count, key)) for key in range(keys))
    expected, freedom = keys / factorial(count), factorial(count) - 1
    square = sum((counts[order] - expected) ** 2 / expected for order in permutations(range(count)))
    assert square < freedom + 4 * sqrt(2 * freedom) + 6


def test_the_order_of_a_key_never_changes():
    assert listed(12, 2**40 + 1, 3) == [8, 5, 4, 3, 9, 10, 1, 11, 7, 2, 6, 0]

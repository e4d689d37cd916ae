"""How many rows make a piece."""

import jax
import jax.numpy as jnp
import pytest

from jaxpar.memory import streaming
from jaxpar.memory.streaming import rows_of_piece


def rows(total: int, least: int, fitting: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """For `total` rows, of which `fitting` have the bytes of a piece."""
    monkeypatch.setattr(streaming, "PIECE_BYTES", 4 * fitting)
    return rows_of_piece(jax.ShapeDtypeStruct((total,), jnp.float32), least)


def test_a_number_that_divides_is_chosen_where_it_is_no_less_than_asked(monkeypatch: pytest.MonkeyPatch):
    assert rows(12, 1, 5, monkeypatch) == 4
    assert rows(9, 4, 1, monkeypatch) == 4, "3 divides, and is less"
    assert rows(11, 1, 5, monkeypatch) == 5, "1 divides, and is less than half"
    assert rows(3, 4, 1, monkeypatch) == 3, "there are no more"

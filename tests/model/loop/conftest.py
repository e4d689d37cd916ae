"""Memory as GPUs have it."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax


@pytest.fixture(autouse=True)
def allocated(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of arrays that are not filled. Here they hold numbers that spread; on CPU devices they are zeros."""
    shapes: list[tuple[int, ...]] = []

    def empty(shape: tuple[int, ...], dtype: Any) -> jax.Array:
        shapes.append(shape)
        return jnp.full(shape, jnp.nan if jnp.issubdtype(dtype, jnp.inexact) else 77, dtype)

    monkeypatch.setattr(lax, "empty", empty)
    return shapes

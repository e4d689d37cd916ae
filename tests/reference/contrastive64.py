"""The contrastive term over relations in float64, triple by triple, with sets of spans (CKBERT, arXiv:2210.05287)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.reference import decoder64
from tests.reference.options import complete

type Span = tuple[int, int]
type Triple = tuple[Span, Span, float]
"""Head, tail, and weight."""


def row_term(states: Any, triples: Sequence[Triple], temperature: float) -> Any:
    """The term of a row: states [token, embed]."""
    if not triples:
        return jnp.zeros(())
    spans = sorted({span for head, tail, _ in triples for span in (head, tail)})
    means = jnp.stack([states[first:stop].mean(axis=0) for first, stop in spans])
    directions = means / jnp.linalg.norm(means, axis=1, keepdims=True)
    similarity = directions @ directions.T / temperature

    total = jnp.zeros(())
    for head, tail, weight in triples:
        tails = {other for start, other, _ in triples if start == head}
        rest = {other for _, other, _ in triples} - tails - {head}
        compared = np.array([spans.index(one) for one in (tail, *sorted(rest))])
        scores = similarity[spans.index(head), compared]
        total += weight * (jnp.log(jnp.exp(scores).sum()) - scores[0])
    return total / len(triples)


def loss_and_gradients(
    weights: Any, options: Any, batch: Mapping[str, np.ndarray], triples: Sequence[Sequence[Triple]], factor: float,
    temperature: float,
) -> tuple[float, float, Any]:  # fmt: skip
    """The mean loss of masked tokens with `factor` times the term, the term itself, and gradients; float64."""
    with jax.enable_x64(True):
        doubles = jax.tree.map(lambda leaf: jnp.asarray(leaf, "float64"), weights)
        arrays = {key: jnp.asarray(value, "float64" if key == "mask" else "int64") for key, value in batch.items()}
        full = complete(options)

        def total(tree: Any) -> tuple[Any, Any]:
            states, drawn = decoder64.stream(tree, full, arrays), arrays["mask"].sum(1)
            terms = [row_term(states[row], of_row, temperature) for row, of_row in enumerate(triples)]
            term = sum(count * one for count, one in zip(drawn, terms, strict=True)) / drawn.sum()
            return decoder64.mean_loss(tree, full, arrays) + factor * term, term

        (value, term), gradients = jax.jit(jax.value_and_grad(total, has_aux=True))(doubles)
        return float(value), float(term), jax.tree.map(np.asarray, gradients)

"""Cross-entropy of a linear head in float64 NumPy with its derivative written out: what the kernels are held to."""

from typing import NamedTuple

import numpy as np


class Case(NamedTuple):
    """Arrays of one call, and the cotangents of its two results."""

    x: np.ndarray
    table: np.ndarray
    """[embed, columns]."""
    labels: np.ndarray
    of_loss: np.ndarray
    of_lse: np.ndarray


def case(tokens: int, embed: int, columns: int, vocab: int | None = None, ignored: int = -100, seed: int = 0) -> Case:
    """Logits of a few units; an eighth of the tokens is ignored, others have the first and the last label."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, columns if vocab is None else vocab, tokens)
    labels[draw.random(tokens) < 1 / 8] = ignored
    labels[0], labels[-1] = 0, (columns if vocab is None else vocab) - 1
    x, table = draw.standard_normal((tokens, embed)), draw.standard_normal((embed, columns)) * 2 * embed**-0.5
    return Case(x, table, labels.astype(np.int32), draw.standard_normal(tokens), draw.standard_normal(tokens))


def losses(
    case: Case, *, vocab: int | None = None, softcap: float | None = None, z_loss: float = 0.0, ignored: int = -100
) -> dict[str, np.ndarray]:
    """Loss, log-sum-exp and the gradients of x and the table for the cotangents of `case`."""
    x, table, of_loss, of_lse = (np.asarray(a, np.float64) for a in (case.x, case.table, case.of_loss, case.of_lse))
    weight = table[:, :vocab]
    counts = case.labels != ignored
    raw = x @ weight
    logits = raw if softcap is None else softcap * np.tanh(raw / softcap)
    peak = logits.max(-1)
    lse = peak + np.log(np.exp(logits - peak[:, None]).sum(-1))
    hit = case.labels[:, None] == np.arange(weight.shape[1])
    loss = counts * (lse - np.where(hit, logits, 0.0).sum(-1) + z_loss * lse**2)
    of_nll = counts * of_loss
    of_all = counts * of_lse + 2 * z_loss * lse * of_nll + of_nll
    gradients = of_all[:, None] * np.exp(logits - lse[:, None]) - of_nll[:, None] * hit
    if softcap is not None:
        gradients = gradients * (1 - (logits / softcap) ** 2)
    d_table = np.zeros(table.shape)
    d_table[:, :vocab] = x.T @ gradients
    return {"loss": loss, "lse": counts * lse, "dx": gradients @ weight.T, "d_table": d_table}

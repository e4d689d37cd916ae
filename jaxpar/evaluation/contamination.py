"""Whether a model may have seen a task: its texts in training data, and how sure the model is of their tokens.

Sources: overlap of n-grams as in GPT-3 (arXiv:2005.14165, appendix C), of tokens here; min-k% probability from
arXiv:2310.16789. FreeEval (arXiv:2404.06003) reports the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxpar.data.tokens.ngrams import NGrams, Overlap
from jaxpar.data.tokens.token_folder import open_token_folder
from jaxpar.evaluation.language_model import LanguageModel
from jaxpar.evaluation.outcome import Metric, Outcome, mean, ratio
from jaxpar.evaluation.task import Task

SHARE = 0.2
"""The share of tokens of min-k%, as in its source."""


@dataclass(frozen=True)
class Contamination:
    """Contamination of a task's examples."""

    overlaps: Sequence[Overlap]
    """Overlap of each example's text with the training data."""
    min_k: Sequence[float] | None
    """Min-k% of each example's text; None without a model."""

    @property
    def metrics(self) -> dict[str, Metric]:
        """Shares of all examples and tokens, and a mean."""
        matched = [float(one.matched > 0) for one in self.overlaps]
        covered = ratio([one.covered for one in self.overlaps], [one.tokens for one in self.overlaps])
        metrics = {"contaminated": mean(matched), "covered": covered}
        return metrics if self.min_k is None else metrics | {"min_k": mean(self.min_k)}

    @property
    def details(self) -> list[dict[str, float]]:
        """Details of each example, as JSON."""
        min_k = [{}] * len(self.overlaps) if self.min_k is None else [{"min_k": one} for one in self.min_k]
        return [
            {"ngrams": one.ngrams, "ngrams_found": one.matched, "covered": one.covered / max(1, one.tokens), **more}
            for one, more in zip(self.overlaps, min_k, strict=True)
        ]


def shared_ngrams(folder: str | Path, tasks: Sequence[Task], size: int) -> list[list[Overlap]]:
    """The n-grams that the texts of tasks share with the training documents of a token folder.

    Texts are encoded by the folder's tokenizer, so no n-gram goes from one document into the next. The folder is read
    once, in pieces: see `NGrams` for the memory.

    Raises:
        UserError: the folder is damaged, or is none.
    """
    opened = open_token_folder(folder, key="--contamination")
    codec = opened.codec  # Loads the tokenizer once.
    encoded = [[codec.encode(text) for text in task.texts] for task in tasks]
    ngrams = NGrams([text for texts in encoded for text in texts], size)
    ngrams.search_stream(opened.train.tokens)
    overlaps = iter(ngrams.overlaps())
    return [[next(overlaps) for _ in texts] for texts in encoded]


def min_k(log_probabilities: np.ndarray, share: float = SHARE) -> float:
    """The mean log-probability of the share of tokens that are the least likely; of at least one.

    Text that a model was trained on has few unlikely tokens. There is no threshold for all models: compare it with that
    of texts that cannot have been seen.
    """
    count = max(1, int(len(log_probabilities) * share))
    return float(np.sort(log_probabilities)[:count].mean(dtype=np.float64))


def min_k_of(model: LanguageModel, task: Task) -> list[float]:
    """Min-k% of the text of each example."""
    return [min_k(np.concatenate(windows)) for windows in model.token_likelihoods(task.texts)]


def with_contamination(outcome: Outcome | None, task: Task, contamination: Contamination) -> Outcome:
    """The results of a task, if any, with its contamination, and means over the examples without it (`..._clean`)."""
    details = list(outcome.details) if outcome else [{} for _ in task.examples]
    clean = [detail for detail, overlap in zip(details, contamination.overlaps, strict=True) if not overlap.matched]
    metrics = dict(outcome.metrics) if outcome else {}
    for name in list(metrics):
        if clean and len(clean) < len(details) and name in details[0]:
            metrics[f"{name}_clean"] = mean([detail[name] for detail in clean])
    both = [{**detail, **more} for detail, more in zip(details, contamination.details, strict=True)]
    return Outcome(task.settings.kind, len(task.examples), metrics | contamination.metrics, both)

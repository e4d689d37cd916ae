"""A model's answers to a task, and how good they are."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import cast

import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.evaluation.language_model import LanguageModel
from jaxpar.evaluation.matching import first_matches
from jaxpar.evaluation.outcome import Metric, Outcome, exponential, mean, ratio, scaled
from jaxpar.evaluation.task import Choice, Document, Generation, MultipleChoice, Perplexity, Question, Task

_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def run_task(model: LanguageModel, task: Task) -> Outcome:
    """Ask a model all examples of a task.

    Raises:
        UserError: an example does not fit into the model's context.
    """
    try:
        match task.settings:
            case MultipleChoice() as settings:
                return _multiple_choice(model, settings, cast(Sequence[Choice], task.examples))
            case Generation() as settings:
                return _generation(model, settings, cast(Sequence[Question], task.examples))
            case Perplexity() as settings:
                return _perplexity(model, settings, cast(Sequence[Document], task.examples))
    except UserError as error:
        raise UserError(f"the task {task.name}: {error}") from None


def _multiple_choice(model: LanguageModel, settings: MultipleChoice, examples: Sequence[Choice]) -> Outcome:
    asked = [
        (settings.preamble + example.context, settings.delimiter + choice)
        for example in examples
        for choice in example.choices
    ]
    likelihoods = iter(model.likelihoods(asked))
    totals = [np.array([next(likelihoods).total for _ in example.choices]) for example in examples]
    lengths = [np.array([len(choice) for choice in example.choices], np.float64) for example in examples]
    best = [int(total.argmax()) for total in totals]
    normed = [int((total / length).argmax()) for total, length in zip(totals, lengths, strict=True)]
    right = [example.answer for example in examples]
    hits = [float(one == answer) for one, answer in zip(best, right, strict=True)]
    normed_hits = [float(one == answer) for one, answer in zip(normed, right, strict=True)]
    details = [
        {"log_likelihoods": total.tolist(), "answer": answer, "acc": hit, "acc_norm": normed_hit}
        for total, answer, hit, normed_hit in zip(totals, right, hits, normed_hits, strict=True)
    ]
    return Outcome(settings.kind, len(examples), {"acc": mean(hits), "acc_norm": mean(normed_hits)}, details)


def _generation(model: LanguageModel, settings: Generation, examples: Sequence[Question]) -> Outcome:
    prompts = [settings.preamble + example.prompt for example in examples]
    texts = model.generated(prompts, settings.tokens, settings.stop)
    hits = [
        float(text in {_plain(answer, settings) for answer in example.answers})
        for text, example in zip(compared(texts, settings), examples, strict=True)
    ]
    details = [{"text": text, "exact_match": hit} for text, hit in zip(texts, hits, strict=True)]
    return Outcome(settings.kind, len(examples), {"exact_match": mean(hits)}, details)


def compared(texts: Sequence[str], settings: Generation) -> list[str | None]:
    """The part of each generated text to compare with the answers; None if the pattern does not match."""
    matched = texts if settings.pattern is None else first_matches(settings.pattern, texts)
    return [None if text is None else _plain(text, settings) for text in matched]


def _plain(text: str, settings: Generation) -> str:
    """A text as it is compared: without white space around it."""
    if settings.ignore_case:
        text = text.lower()
    if settings.ignore_punctuation:
        text = text.translate(_WITHOUT_PUNCTUATION)
    return text.strip()


def _perplexity(model: LanguageModel, settings: Perplexity, examples: Sequence[Document]) -> Outcome:
    if settings.stride is not None and settings.stride > model.length:
        raise UserError(f"stride: expected at most {model.length}, what the model reads, got {settings.stride}")
    windows_of_examples = model.token_likelihoods([example.text for example in examples], settings.stride)
    parts = [window for windows in windows_of_examples for window in windows]
    nats = ratio([-float(window.sum(dtype=np.float64)) for window in parts], [len(window) for window in parts])
    tokens, texts = sum(map(len, parts)), sum(len(example.text.encode()) for example in examples)
    details = [
        _document_record(example, windows) for example, windows in zip(examples, windows_of_examples, strict=True)
    ]
    metrics: dict[str, Metric] = {
        "nats_per_token": nats,
        "perplexity": exponential(nats),
        "bits_per_byte": scaled(nats, tokens / texts / math.log(2)),
    }
    return Outcome(settings.kind, len(examples), metrics, details)


def _document_record(example: Document, windows: Sequence[np.ndarray]) -> dict[str, object]:
    total = sum(float(window.sum(dtype=np.float64)) for window in windows)
    size = len(example.text.encode())
    return {"log_likelihood": total, "tokens": sum(map(len, windows)), "bytes": size}

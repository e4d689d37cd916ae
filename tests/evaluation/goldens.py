"""Numbers of lm-evaluation-harness with its own backend (`tests/goldens/generate_evaluation.py`)."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from jaxpar.evaluation.context_length import context_length
from jaxpar.evaluation.language_model import LanguageModel
from jaxpar.generation.placed_model import open_model, place_model
from jaxpar.interop.sources.tokenizer import text_of

FOLDER = Path(__file__).parents[1] / "goldens"
EVALUATION = FOLDER / "evaluation"
TOKENIZERS = {"llama": "marked", "gpt2": "plain"}
TOLERANCE = 1e-5
"""Relative, in float32."""


@cache
def language_model(name: str) -> LanguageModel:
    """A golden with its tokenizer, on all devices; shared by the tests of a process."""
    config, source = open_model(str(FOLDER / name), [])
    text = text_of(source, EVALUATION / TOKENIZERS[name] / "tokenizer.json", print)
    return LanguageModel(place_model(config, source), text, context_length(source, None))


def results(name: str) -> dict[str, Any]:
    """By task: `metrics`, and `examples`."""
    return json.loads((EVALUATION / "results.json").read_text())[name]

"""Reads a golden: weights in the layout of the weight tree, and the logits that transformers computes from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.reference.tree import Tree, unflatten

FOLDER = Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.npz")))
NOT_WEIGHTS = ("tokens", "logits", "options", "made_with")


def nested(leaves: Mapping[str, np.ndarray]) -> Tree:
    """Nested dict of leaves named like `layers/attention/query`."""
    return unflatten({tuple(name.split("/")): leaf for name, leaf in leaves.items()})


def pad_vocabulary(weights: Tree, multiple: int) -> Tree:
    """The tree with zero rows (embedding) and zero columns (head) up to a multiple."""
    tokens = weights["embedding"]["tokens"]
    missing = -len(tokens) % multiple
    padded = weights | {"embedding": weights["embedding"] | {"tokens": np.pad(tokens, ((0, missing), (0, 0)))}}
    if "head" in weights:
        padded["head"] = {"weight": np.pad(weights["head"]["weight"], ((0, 0), (0, missing)))}
    return padded


def load(name: str, vocab_multiple: int = 1) -> tuple[Tree, dict[str, Any], np.ndarray, np.ndarray]:
    """A golden by name, one of `NAMES`.

    Returns:
        weights: float32 tree, the vocabulary padded with zeros to a multiple of `vocab_multiple`;
        options: the `model` section of the configuration, `vocab` being the true size;
        tokens: int32 [batch, seq], whole rows of one document each;
        logits: float64 [batch, seq, vocab], not padded.
    """
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as stored:
        arrays = dict(stored)
    weights = nested({key: leaf for key, leaf in arrays.items() if key not in NOT_WEIGHTS})
    options = json.loads(str(arrays["options"]))
    return pad_vocabulary(weights, vocab_multiple), options, arrays["tokens"], arrays["logits"]

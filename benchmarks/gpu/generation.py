"""Generation on the device: tokens per second of a prompt and after it, beside transformers' where it is installed."""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.generate.random_model import SMALL, write_random_model
from benchmarks.generate.sides import Jaxpar, Side, Transformers, has_transformers
from benchmarks.generate.turns import measured
from benchmarks.gpu.journal import Journal
from benchmarks.gpu.programs import sentence
from jaxpar.config.presets import PRESETS

DTYPE = "bfloat16"
BATCHES = (1, 8, 32)
PROMPT, NEW, ROUNDS = 1024, 128, 3


def generate(journal: Journal) -> None:
    """Llama-3.2-1B with random weights in bfloat16."""
    model = replace(SMALL, layers=2, embed=32, mlp=48, heads=4, vocab=64) if journal.dry else PRESETS["llama3-1b"]
    prompt, new, rounds = (8, 3, 1) if journal.dry else (PROMPT, NEW, ROUNDS)
    assert model.vocab is not None
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        write_random_model(Path(folder), model, prompt + new, DTYPE)
        sides: dict[str, Side] = {"jaxpar": Jaxpar(Path(folder))}
        if journal.dry or not has_transformers(sys.executable):
            journal.skip("generation of transformers", "it is a dry run, or torch and transformers do not import")
        else:
            try:
                sides["transformers"] = stack.enter_context(Transformers(sys.executable, Path(folder), "cuda", DTYPE))
            except RuntimeError as error:
                journal.skip("generation of transformers", str(error))
        for batch in BATCHES[:1] if journal.dry else BATCHES:
            if not journal.has_time(f"generation with batch {batch}", 20):
                continue
            try:
                row = measured(sides, model.vocab, batch, prompt, new, rounds)
            except Exception as error:  # for example out of memory: a row of its own
                journal.add("generation", name="llama3-1b", batch=batch, failed=sentence(error))
                continue
            journal.add("generation", name="llama3-1b", **row)

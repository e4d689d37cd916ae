"""Long packed rows on eight devices, of 64k tokens before a release: every context strategy trains alike."""

import json
from pathlib import Path

import numpy as np
import pytest

from jaxpar.config import load_config
from tests.processes import run_python

CONFIG = Path(__file__).parents[3] / "configs" / "long_context.yaml"
LENGTH = 65_536
LONG = 0.15
"""Share of a row that long documents have: more than a rank's part, so that keys of several ranks are seen."""
SHORT = 4096
STEPS = 10
STRATEGIES = ("allgather", "ring", "ulysses", "usp")


def short_documents(file: Path, length: int) -> None:
    """Words, in documents so short (but for some) that a CPU attends over a row in seconds."""
    draw = np.random.default_rng(0)
    words = [draw.integers(97, 123, size=count) for count in draw.integers(1, 9, size=500)]
    text = np.concatenate([np.append(words[word % len(words)], 32) for word in draw.zipf(1.3, size=20_000)])
    tokens = np.resize(text, 11 * length + 1).astype(np.uint16)
    ends = np.cumsum(draw.integers(2, 400, size=10_000))
    ends = ends[ends < len(tokens)]
    # Long ones begin every third stretch, and reach beyond a rank's part.
    ends = ends[(ends % length > length * LONG) | (ends // length % 3 > 0)]
    tokens[ends] = 256
    np.save(file, tokens)


def losses(strategy: str, folder: Path, length: int) -> list[float]:
    """Of the first steps, in a process as a user starts it."""
    options = {
        "run.dir": folder, "run.name": strategy, "run.compile_cache": "null", "parallel.context_strategy": strategy,
        "data.source": "tokens", "data.path": folder / "tokens.npy", "data.separator": 256, "model.vocab": 257,
        "model.window": "null", "model.layers": 1, "run.steps": STEPS, "data.sequence_length": length,
    }  # fmt: skip
    settings = [word for key, value in options.items() for word in ("--set", f"{key}={value}")]
    arguments = ("--config", CONFIG, *settings)
    done = run_python("-m", "jaxpar.train", *arguments, without=("XLA_FLAGS", "JAX_PLATFORMS"))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert json.loads((folder / strategy / "plan.json").read_text())["plan"]["context_strategy"]["name"] == strategy
    lines = (folder / strategy / "metrics.jsonl").read_text().splitlines()
    return [row["loss"] for row in map(json.loads, lines) if "loss" in row]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "length", [pytest.param(SHORT, marks=pytest.mark.long), pytest.param(LENGTH, marks=pytest.mark.release)]
)
def test_long_rows_train_to_the_same_losses_under_every_strategy(tmp_path: Path, length: int):
    config = load_config(CONFIG)
    assert config.data.sequence_length == LENGTH and config.parallel.context == 8 and config.data.packed
    short_documents(tmp_path / "tokens.npy", length)
    found = {strategy: losses(strategy, tmp_path, length) for strategy in STRATEGIES}
    assert len(found["allgather"]) == STEPS and found["allgather"][-1] < found["allgather"][0]
    for strategy in STRATEGIES:
        np.testing.assert_allclose(found[strategy], found["allgather"], rtol=1e-5, err_msg=strategy)

"""summary.json."""

import json
from pathlib import Path

from jaxpar.observe.writers.summary import SummaryFile
from tests.observe.records import run_info, summary


def test_the_summary_has_its_keys_at_the_end_and_not_before(tmp_path: Path) -> None:
    writer = SummaryFile()
    writer.start(run_info(tmp_path))
    assert not (tmp_path / "summary.json").exists()
    writer.end(summary(loss=float("nan")))
    values = json.loads((tmp_path / "summary.json").read_text(), parse_constant=lambda word: word)
    for key in ("steps", "loss", "eval_loss", "baseline_loss", "tokens", "train_seconds", "compile_seconds",
                "peak_bytes", "predicted_bytes", "memory_kind"):  # fmt: skip
        assert key in values
    assert values["steps"] == 20 and values["tokens"] == 163_840 and values["loss"] is None

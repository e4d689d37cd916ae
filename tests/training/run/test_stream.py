"""Runs on `data.source: stream` continue in the order of their data, on any number of processes."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.data.folders import texts, write_jsonl, write_tokenizer
from tests.training.run.test_processes import outputs, start_job
from tests.training.runs import MESH, fit, folder_of, losses, run_config


@pytest.mark.long
def test_a_run_of_two_processes_continues_as_one(tmp_path: Path):
    data = {
        "source": "stream",
        "path": str(write_jsonl(tmp_path / "a.jsonl", texts(400))),
        "tokenizer": str(write_tokenizer(tmp_path / "tokenizer.json")),
        "validation_fraction": 0.1,
        "workers": 1,
    }
    sections: dict[str, Any] = {
        "parallel": MESH,
        "data": data,
        "model": {"vocab": None},
        "evaluation": {"batches": 2, "sample_tokens": 2},
        "checkpoint": {"every": 2},
    }
    one, two = (run_config(tmp_path / name, 4, **sections) for name in ("one", "two"))
    wanted, _ = fit(one)
    done = outputs(start_job(two, tmp_path / "two.yaml", 2))
    assert [code for code, _, _ in done] == [0, 0], done
    assert losses(two) == pytest.approx(losses(one), rel=1e-6)
    summary = json.loads((folder_of(two) / "summary.json").read_text())
    assert summary["eval_loss"] == pytest.approx(wanted.eval_loss, rel=1e-6)
    assert summary["baseline_loss"] == wanted.baseline_loss
    facts = [json.loads((folder_of(run) / "checkpoints/00000004/facts.json").read_text()) for run in (one, two)]
    assert facts[0]["stream"] == facts[1]["stream"] and len(facts[0]["stream"]["lanes"]) == 8
    longer, whole = (run_config(tmp_path / name, 7, **sections) for name in ("two", "whole"))
    fit(longer)
    fit(whole)
    assert losses(longer) == pytest.approx(losses(whole), rel=1e-6)

"""Islands in separate processes: the numbers of one process, read by all."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.same_bits import assert_same_bits
from tests.training.run.test_processes import outputs, start_job
from tests.training.runs import fit, folder_of, losses, run_config, saved_state


@pytest.mark.long
def test_an_island_in_each_of_two_processes_trains_as_in_one(tmp_path: Path):
    sections: dict[str, Any] = {
        "parallel": {"islands": 2, "fsdp": 2, "tensor": 2},
        "islands": {"every": 2, "delay": 1},
        "evaluation": {"every": 2, "batches": 2, "sample_tokens": 3},
        "checkpoint": {"every": 3},
    }
    one, two = (run_config(tmp_path / name, 4, **sections) for name in ("one", "two"))
    wanted, _ = fit(one)
    done = outputs(start_job(two, tmp_path / "two.yaml", 2))
    assert [code for code, _, _ in done] == [0, 0], done
    assert losses(two) == pytest.approx(losses(one), rel=1e-6)
    summary = json.loads((folder_of(two) / "summary.json").read_text())
    assert summary["eval_loss"] == pytest.approx(wanted.eval_loss, rel=1e-6)
    assert summary["tokens"] == wanted.tokens
    assert_same_bits(saved_state(two, 4).step, saved_state(one, 4).step)

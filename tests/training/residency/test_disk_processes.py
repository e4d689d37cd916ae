"""State in files of one folder that several processes share."""

from pathlib import Path

import pytest

from tests.same_bits import assert_same_bits
from tests.training.run.test_processes import outputs, start_job
from tests.training.runs import MESH, fit, losses, run_config, saved_state


@pytest.mark.long
def test_two_processes_with_their_state_in_one_folder_train_as_one(tmp_path: Path):
    def config(name: str, steps: int):
        memory = {"optimizer_offload": "file", "offload_dir": str(tmp_path / "disk")}
        return run_config(tmp_path / name, steps, parallel=MESH, memory=memory, checkpoint={"every": 2})

    fit(one := config("one", 4))
    for steps in (2, 4):  # the second job continues from the checkpoint of the first
        two = config("two", steps)
        done = outputs(start_job(two, tmp_path / "two.yaml", 2, program="tests.training.residency.one_id"))
        assert [code for code, _, _ in done] == [0, 0], done
    assert losses(two) == pytest.approx(losses(one), rel=1e-6)
    assert_same_bits(saved_state(two, 4).step, saved_state(one, 4).step)
    assert list((tmp_path / "disk").iterdir()) == []

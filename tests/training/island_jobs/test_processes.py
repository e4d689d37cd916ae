"""An island of two processes beside one of a single process: each process writes and reads the parts that it has."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from tests.training.run.test_processes import outputs, start_job
from tests.training.runs import MESH, run_config, saved_state, start, write_config


@pytest.mark.long
@pytest.mark.timeout(600)
def test_an_island_of_two_processes_and_one_of_one_agree(tmp_path: Path):
    islands = {"every": 3, "folder": str(tmp_path / "exchange"), "quorum": 2, "wait_s": 1000.0}
    layouts: dict[str, dict[str, Any]] = {"two": MESH, "one": {"pipe": 2, "microbatches": 2}}
    configs = {
        name: run_config(tmp_path, 6, parallel=parallel, islands=islands, run={"name": name})
        for name, parallel in layouts.items()
    }
    job = start_job(configs["two"], tmp_path / "two.yaml", 2)
    job.append(start(write_config(configs["one"], tmp_path / "one.yaml"), devices=2))
    for code, _, error in outputs(job):
        assert code == 0, error
    written = sorted((tmp_path / "exchange/rounds/00000001/contributions/two").iterdir())
    assert [path.name for path in written] == ["0.safetensors", "1.safetensors"]
    names = [set(safe_open(path, framework="numpy").keys()) for path in written]
    assert names[0] and names[1] and not names[0] & names[1]  # no part twice
    weights = [saved_state(config, 6).master for config in configs.values()]
    flat = [dict(_leaves(one)) for one in weights]
    assert all(np.array_equal(flat[0][name], flat[1][name]) for name in flat[0])


def _leaves(tree: Any, path: str = "") -> Any:
    for name, branch in tree.items():
        yield from _leaves(branch, f"{path}/{name}") if isinstance(branch, dict) else [(f"{path}/{name}", branch)]

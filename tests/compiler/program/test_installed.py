"""The compiler that is installed writes what the records know, and the same without making machine code."""

import subprocess
import sys
from pathlib import Path

import pytest

from jaxpar.compiler.program.costs.ops import costs, flops_by_kind
from jaxpar.compiler.program.loops import executions
from jaxpar.compiler.program.memory.buffers import parse_buffers
from tests.compiler.program.generate import AFTER, DUMPS, ROOT
from tests.compiler.program.programs import TINY, compiled, strictly


@pytest.mark.long
def test_the_small_step_compiled_now_has_the_work_of_the_kept_one(tmp_path: Path):
    command = [sys.executable, "-m", "tests.compiler.program.tiny_step", str(tmp_path)]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr[-4000:]
    with_and_without = [sorted((tmp_path / "dump").glob(AFTER + ending)) for ending in DUMPS.values()]
    assert [len(files) for files in with_and_without] == [2] * len(DUMPS)
    for files in with_and_without:
        assert files[0].read_bytes() == files[1].read_bytes()
    for name in ("program.txt", "memory.json"):
        assert (tmp_path / name).read_text() == (tmp_path / "without_machine_code" / name).read_text()
    dumped = {name: files[0].read_text() for name, files in zip(DUMPS, with_and_without, strict=True)}
    assert sum(one.size for one in parse_buffers(dumped["buffers"], dumped["live"]).allocations) > 0
    kept = compiled(TINY[0])
    module = strictly((tmp_path / "program.txt").read_text())
    assert flops_by_kind(costs(module, executions(module))) == flops_by_kind(costs(kept, executions(kept)))
    assert not module.unknown.notes()

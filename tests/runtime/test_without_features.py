"""The runtime runs without the features that plug into it: FP8, low-rank factors, experts and preferences."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

FEATURES = {
    "FP8": (
        "jaxpar/precision", "jaxpar/layers/ops/quantised.py", "jaxpar/layers/matmul_formats.py",
        "jaxpar/stores/quantized.py",
    ),
    "low-rank factors": ("jaxpar/layers/adapters.py",),
    "experts": ("jaxpar/layers/experts",),
    "preferences": ("jaxpar/objectives/preferences.py",),
}  # fmt: skip
"""The files of each feature."""

ENTRIES = {"jaxpar/config/parts.py": r'^    "dpo": LossEntry\([^)]*\), pairs=True\n    \),\n'}
"""The entries of registries that name these files."""

TESTS = (
    "tests/model/loop/test_walk.py",
    "tests/model/loop/test_layer_loop.py::test_the_loop_equals_a_plain_one",
    "tests/pipeline/execution/test_executor.py::test_each_tick_multiplies_what_its_actions_multiply_and_no_more",
    "tests/pipeline/execution/test_executor.py::"
    "test_chunks_that_are_held_are_gathered_twice_and_scattered_once_in_a_batch",
    "tests/pipeline/execution/test_slots.py",
)


def test_the_tests_of_the_runtime_pass_in_a_copy_without_the_features(tmp_path: Path):
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    for folder in ("jaxpar", "pallas_kernels", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for path in (tmp_path / path for paths in FEATURES.values() for path in paths):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path, entry in ENTRIES.items():
        file = tmp_path / path
        text, changed = re.subn(entry, "", file.read_text(), flags=re.MULTILINE)
        assert changed, f"{path} has no entry like {entry}"
        file.write_text(text)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TESTS]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]

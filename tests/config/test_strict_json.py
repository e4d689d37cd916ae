"""JSON that is printed or written for a user has no token that strict readers refuse."""

import ast
import json
from pathlib import Path

import numpy as np
import pytest

import jaxpar
from jaxpar.config.strict_json import json_text

BETWEEN_PROCESSES = {
    "checkpoint", "data", "distributed", "checkup/checkup.py", "compiler/child.py", "compiler/compilation.py",
    "compiler/compile.py", "evaluation/first_match.py", "precision/history.py", "training/monitor/anomaly_monitor.py",
    "generation/mixture/source.py", "training/island_jobs", "training/run/agreed.py", "training/run_folder/lock.py",
    "remote",
}  # fmt: skip
"""Files and folders whose JSON jaxpar alone reads, or that has neither measured nor computed numbers."""


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), np.float64("nan")])
def test_a_number_that_is_not_finite_is_null_at_any_depth(number: float):
    def refuse(token: str) -> None:
        raise AssertionError(token)

    text = json_text({"a": [1.5, (number, {"b": number})], "c": 2}, indent=1)
    assert json.loads(text, parse_constant=refuse) == {"a": [1.5, [None, {"b": None}]], "c": 2}


def test_every_command_writes_its_json_so():
    root = Path(jaxpar.__file__).parent
    lenient = set()
    for file in root.rglob("*.py"):
        name = file.relative_to(root).as_posix()
        text = file.read_text()
        if "json.dump" not in text or any(f"{name}/".startswith(f"{one}/") for one in BETWEEN_PROCESSES):
            continue
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        written = [call for call in calls if getattr(call.func, "attr", None) in ("dump", "dumps")]
        if any("allow_nan" not in {keyword.arg for keyword in call.keywords} for call in written):
            lenient.add(name)
    assert lenient == {"observe/writers/tensorboard.py"}, "whose JSON is a text to look at"

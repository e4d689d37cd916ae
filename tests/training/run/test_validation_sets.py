"""Validation sets by name have their own losses, and the loss of the run is that of all of them."""

from pathlib import Path
from typing import Any

import pytest

from jaxpar.data import open_data
from jaxpar.observe.writers.console import ConsoleView
from jaxpar.observe.writers.jsonl import read_metrics
from tests.data.folders import prepared, quiet, texts
from tests.training.runs import fit, folder_of, make_run, run_config


@pytest.mark.long
def test_each_set_has_the_loss_that_it_has_alone(tmp_path: Path):
    trained = prepared(tmp_path / "trained", texts(40)).path
    sets = {"short": str(prepared(tmp_path / "a", texts(40, seed=5), validation_fraction=0.0).path)}
    sets["other"] = str(prepared(tmp_path / "b", ["x y z " * 9] * 30, validation_fraction=0.0).path)
    data: dict[str, Any] = {"source": "tokens", "path": str(trained)}
    changes: dict[str, Any] = {"model": {"vocab": None}, "evaluation": {"every": 2, "batches": 2}}
    config = run_config(tmp_path, 2, data=data | {"validation": sets}, **changes)
    console = quiet()
    _, recorded = fit(config, ConsoleView(console))
    (line,) = [line for line in read_metrics(folder_of(config) / "metrics.jsonl") if line.get("metrics")]
    found = {name: line["metrics"][f"eval_loss_{name}"] for name in sets}
    assert f"validation short {found['short']:.4f}, other {found['other']:.4f}" in console.file.getvalue()
    rows = open_data(config.data, vocab=None, seed=0).evaluated
    targets = {name: sum(rows[name].row(example)["mask"].sum() for example in range(16)) for name in sets}
    mean = sum(found[name] * targets[name] for name in sets) / sum(targets.values())
    assert recorded.evaluations == [(2, pytest.approx(mean, rel=1e-6))]
    for name, path in sets.items():
        alone = make_run(run_config(tmp_path / name, 2, data=data | {"validation_path": path}, **changes))
        alone.step(), alone.step()
        assert alone.evaluate() == pytest.approx(found[name], rel=1e-6)

"""Facts of a checkpoint that are missing or of another type are one sentence, whoever reads them."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxpar.checkpoint import CheckpointError, manifest
from jaxpar.checkpoint.digests import file_entries
from jaxpar.checkpoint.facts import FACTS
from jaxpar.config import Config
from jaxpar.interop.sources.open_source import open_source
from jaxpar.training.run.saving import config_of_checkpoint
from tests.sentences import refused
from tests.training.runs import MESH, fit, folder_of, run_config

STEP = 2
HF = {"family": "llama", "dtypes": {}}
MISSING = object()
REQUIRED = (
    "shuffle", "mixture", "left_out", "tokens", "skipped", "empty", "loss", "eval_step", "eval_loss",
    "skipped_in_row", "carried",
)  # fmt: skip
WRONG: list[tuple[str, Any]] = [
    ("config", MISSING), ("config", None),
    ("config", []), ("hugging_face", 5), ("hugging_face", {}), ("hugging_face", {"family": [1]}),
    ("hugging_face", HF | {"family": [1]}), ("hugging_face", HF | {"dtypes": {"a": 1}}), ("came_from", 5),
    ("came_from", [5]), ("base", {"path": "a"}), ("reference", "a"), ("carried", 5), ("carried", {"a": 1}),
    ("tokens", "5"), ("empty", None), ("loss", []), ("shuffle", [1]), ("mixture", {"first": 0}), ("left_out", 5),
    ("skipped_in_row", "1"), ("data", 5), ("anomaly_monitor", {}), ("anomaly_monitor", {"losses": 5, "rollbacks": 0}),
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A run with one checkpoint."""
    config = run_config(tmp_path_factory.mktemp("facts"), STEP, parallel=MESH)
    fit(config)
    return config


@pytest.fixture
def checkpoint(run: Config):
    """Its checkpoint, whose facts are as before after the test."""
    folder = folder_of(run) / "checkpoints" / f"{STEP:08}"
    facts = json.loads((folder / FACTS).read_text())
    yield folder
    write(folder, facts)


def write(checkpoint: Path, facts: object) -> None:
    """Seal a checkpoint with other facts."""
    (checkpoint / manifest.MANIFEST).unlink()
    (checkpoint / FACTS).write_text(json.dumps(facts))
    manifest.seal(checkpoint, STEP, file_entries(checkpoint, manifest.unsealed(checkpoint), flush=False))


def change(checkpoint: Path, name: str, value: object) -> None:
    facts = json.loads((checkpoint / FACTS).read_text())
    facts.pop(name, None)
    write(checkpoint, facts if value is MISSING else facts | {name: value})


@pytest.mark.parametrize("name", REQUIRED)
def test_a_run_does_not_go_on_without_a_fact(checkpoint: Path, name: str):
    change(checkpoint, name, MISSING)
    with refused(str(checkpoint), FACTS, repr(name), error=CheckpointError):
        config_of_checkpoint(checkpoint.parent, STEP, [])


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_fact_of_another_type_is_refused(checkpoint: Path, name: str, value: Any):
    change(checkpoint, name, value)
    for read in (lambda: config_of_checkpoint(checkpoint.parent, STEP, []), lambda: open_source(checkpoint, "MODEL")):
        with refused(str(checkpoint), FACTS, name, error=CheckpointError):
            read()


@pytest.mark.parametrize(("name", "value"), [("empty", MISSING), ("carried", MISSING), ("carried", 5), ("loss", [])])
def test_training_refuses_it_too(run: Config, checkpoint: Path, name: str, value: object):
    change(checkpoint, name, value)
    with refused(str(checkpoint), FACTS, name, error=CheckpointError):
        fit(run)


def test_factors_need_the_model_that_they_adapt(checkpoint: Path):
    facts = json.loads((checkpoint / FACTS).read_text())
    facts["config"]["lora"]["rank"] = 2
    write(checkpoint, facts)
    with refused(str(checkpoint), FACTS, "'base'", error=CheckpointError):
        open_source(checkpoint, "MODEL")

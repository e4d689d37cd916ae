"""Demonstrations: the loss is of what follows a prompt, and the validation prompts are those of a run of rewards."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from jaxpar.config import DataConfig, load_config
from jaxpar.data import open_data
from jaxpar.data.document_rows import DocumentRows
from jaxpar.layout.checks.validate import validate
from jaxpar.rl.prompts import PromptRows
from jaxpar.rl.rewards.builtin import exact
from jaxpar.rl.rewards.json import json_fields, schema_reward, think
from jaxpar.rl.tasks import TASKS
from tests.sentences import refused


def demonstrations(path: str, **changes: object) -> DataConfig:
    return DataConfig(source="demonstrations", path=path, sequence_length=240, **changes)  # pyright: ignore


def test_the_loss_counts_what_follows_a_prompt():
    data = open_data(demonstrations("json"), vocab=None, seed=0)
    assert data.decode is not None and data.separator == 256 == data.vocab - 1
    row = data.train.row(0)
    for segment in range(1, row["segments"].max() + 1):
        here, answer = row["segments"] == segment, (row["segments"] == segment) & (row["mask"] > 0)
        text, completion = data.decode(row["tokens"][here]), data.decode(row["labels"][answer])
        assert text.endswith(f"\n{completion}") and completion.startswith("<think>")
        assert row["labels"][answer][-1] == data.separator
    assert row["segments"].max() > 1


def test_the_validation_prompts_are_those_of_the_run_of_rewards():
    demonstrated = open_data(demonstrations("json"), vocab=None, seed=0)
    drawn = open_data(DataConfig(source="prompts", path="json"), vocab=None, seed=0)
    assert isinstance(drawn.validation, PromptRows) and isinstance(demonstrated.validation, DocumentRows)
    stream, validation = demonstrated.validation.stream, drawn.validation.prompts
    assert len(stream.starts) == len(validation) > 128
    assert (stream.tokens[: len(validation[0].tokens)] == np.array(validation[0].tokens)).all()


def test_one_of_five_demonstrations_of_the_task_is_right():
    """The others have an age that is a text, or another key: they fit neither the reference nor the schema."""
    records = TASKS["json"].records()
    prompts, texts = [one["prompt"] for one in records], [one["completion"] for one in records]
    answers = [one["answer"] for one in records]
    assert set(think(prompts, texts)) == {1.0}
    right = np.array(exact(prompts, texts, answers))
    assert 0.18 < right.mean() < 0.22
    assert (np.array(json_fields(prompts, texts, answers))[right == 0] == 2 / 3).all()
    fits = schema_reward("configs/grpo_json.schema.json")
    assert (np.array(fits(prompts, texts)) == right).all()


def test_prompts_without_a_demonstration_are_refused(tmp_path: Path):
    (tmp_path / "some.jsonl").write_text(
        "\n".join(map(json.dumps, [{"prompt": "a", "completion": "b"}, {"prompt": "c"}]))
    )
    with refused("data.path", "prompt", "'c'", "completion"):
        open_data(
            demonstrations(f"{tmp_path}/some.jsonl", validation_path=f"{tmp_path}/some.jsonl"), vocab=None, seed=0
        )
    with refused("data.path: 'digits'", "prompt 1", "completion"):
        open_data(demonstrations("digits"), vocab=None, seed=0)
    with refused("model.vocab: 8", "at least 257"):
        open_data(demonstrations("json"), vocab=8, seed=0)
    with refused("data.path: null", "a task or a file of prompts"):
        validate(load_config("configs/grpo_json_sft.yaml", ["data.path=null"]))

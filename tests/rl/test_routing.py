"""The step replays the experts with which the sampler drew answers."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.mappings.sampler import SamplerConfig
from jaxpar.generation.placed_model import PlacedModel
from jaxpar.generation.scorer import Scorer
from jaxpar.layers.experts.feed_forward import ROUTING
from jaxpar.rl.answers import answer_rows
from jaxpar.rl.run import RolloutRun
from jaxpar.runtime.batch import Field
from tests.rl.runs import config_of
from tests.rl.test_modes import recorded
from tests.sentences import refused

EXPERTS = {"experts": ExpertsConfig(count=4, per_token=2, width=16)}


def run_of(folder: Path, devices: int, **sections: Any) -> RolloutRun:
    data = {"routing": "sampler", "batch_size": 8} | sections.pop("data", {})
    config = config_of(folder, 4, data=data, model=EXPERTS, **sections)
    return RolloutRun(config, devices=jax.devices()[:devices])


@pytest.mark.long
def test_a_step_replays_the_experts_of_the_version_that_drew(tmp_path: Path):
    """Answers are drawn on another mesh, a version behind, whose routers choose other experts by then."""
    rl = {"mode": "one_step_off", "sampler": SamplerConfig(devices=1)}
    fast = {"learning_rate": 0.3, "warmup_steps": 0}
    run = run_of(tmp_path, 3, rl=rl, parallel={"expert": 2}, optimizer=fast)
    alone = RolloutRun(config_of(tmp_path, 4, model=EXPERTS), devices=jax.devices()[:1])
    scorer = Scorer(PlacedModel(alone.config, alone.mesh, {}))
    with closing(run.rewarder), closing(run._buffer), closing(alone.rewarder):
        rows, weights = recorded(run), []
        for _ in range(3):
            weights.append(jax.device_get(run.current_weights()))
            run.step()
    chosen = []
    for version in (0, 1, 2):
        scorer.model = PlacedModel(
            alone.config, alone.mesh, jax.device_put(weights[version], alone.mesh.devices.flat[0])
        )
        texts = documents_of(rows[2])
        chosen.append([one.recorded["routing"] for one in scorer.scored([text for text, _ in texts], records=True)])
    replayed = [routing for _, routing in documents_of(rows[2])]
    for one, drew in zip(replayed, chosen[1], strict=True):
        np.testing.assert_array_equal(one, drew)
    assert any((one != now).any() for one, now in zip(replayed, chosen[2], strict=True)), "other experts by now"
    assert (rows[2]["routing"][rows[2]["segments"] == 0] == -1).all()


def test_a_batch_without_answers_has_no_experts():
    """As dapo has where all rewards of each group are equal."""
    rows = answer_rows([], 2, 8, Field(ROUTING, dims=(4, 2)))
    assert rows[ROUTING].shape == (2, 8, 4, 2) and (rows[ROUTING] == -1).all()


@pytest.mark.long
def test_a_step_without_answers_leaves_the_run_going(tmp_path: Path):
    reward = tmp_path / "alike.py"
    reward.write_text("def reward(prompts=None, completions=None, **rest):\n    return [1.0 for _ in completions]\n")
    run = run_of(tmp_path, 1, loss="dapo", rl={"rewards": {f"{reward}:reward": 1.0}})
    with closing(run.rewarder):
        run.step()
    assert run.last_metrics["left_out"] == 1


def documents_of(rows: dict[str, np.ndarray]) -> list[tuple[list[int], np.ndarray]]:
    """The tokens of each document with its last label, and the experts of all but that."""
    found = []
    for row, segments in enumerate(rows["segments"]):
        for document in range(1, segments.max() + 1):
            here = np.flatnonzero(segments == document)
            text = [*rows["tokens"][row, here].tolist(), int(rows["labels"][row, here[-1]])]
            found.append((text, rows["routing"][row, here]))
    return found


@pytest.mark.parametrize(
    ("sections", "parts"),
    [
        ({"data": {"routing": "a/folder"}}, ("data.routing: 'a/folder'", "expected sampler")),
        ({"rl": {"epochs": 2}}, ("rl.minibatches x rl.epochs: 2", "expected 1")),
        ({"rl": {"environment": "guess"}}, ("rl.environment or rl.sampler.url: guess", "expected null")),
    ],
)
def test_what_cannot_be_replayed_is_refused(tmp_path: Path, sections: dict[str, Any], parts: tuple[str, ...]):
    with refused(*parts):
        run_of(tmp_path, 1, **sections)

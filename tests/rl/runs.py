"""Small runs that learn from sampled answers to prompts of digits."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxpar.config import Config, LossConfig
from jaxpar.config.mappings.policy import PolicyConfig
from jaxpar.config.schema.reinforcement import RlConfig
from jaxpar.rl.run import RolloutRun
from tests.reference import decoder64
from tests.small_run import layout_of
from tests.training.runs import run_config

DATA = {"source": "prompts", "path": "digits", "sequence_length": 32, "batch_size": 16}


def config_of(folder: Path, steps: int, policy: PolicyConfig | None = None, **sections: Any) -> Config:
    """A small run of digits: 4 prompts and 4 answers to each in a step."""
    data = DATA | sections.pop("data", {})
    rl = {"prompts": 4, "group": 4, "answer_tokens": 6} | sections.pop("rl", {})
    loss = LossConfig(name=sections.pop("loss", "grpo"), policy=policy or PolicyConfig())
    return replace(run_config(folder, steps, data=data, **sections), loss=loss, rl=RlConfig(**rl))


def devices_of(config: Config) -> list[jax.Device]:
    return jax.devices()[: layout_of(config.parallel)]


def log_probabilities64(
    run: RolloutRun, weights: Any, rows: dict[str, np.ndarray], temperature: float = 1.0
) -> np.ndarray:
    """Log-probabilities of the labels of rows, by a float64 decoder with weights of the run."""
    stacks = run.layout.order.stacks.items()
    by_layer = {
        kind: jax.tree.map(lambda x, o=order: x[o.row_of_layer], weights["layers"][kind]) for kind, order in stacks
    }
    logits = decoder64.logits(weights | {"layers": by_layer}, asdict(run.config.model), rows) / temperature
    return decoder64.log_likelihoods(logits, rows["labels"])

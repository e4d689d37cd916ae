"""Two training steps of a configuration and its plan, which may be those of another copy of the tree.

`python -m tests.runtime.two_steps FILE` prints the losses; the file has `config` and `plan`.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from jaxpar.config import config_from_dict
from jaxpar.config.plan import Plan
from jaxpar.config.reading.typed import record_from_plain
from jaxpar.data import batch_rows, open_data
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.build import build_mesh
from jaxpar.runtime.batch import BatchPlacer
from jaxpar.training.step.train_step import TrainStep


def losses_of(plain: Mapping[str, Any]) -> list[float]:
    """The losses of two steps."""
    config, plan = config_from_dict(plain["config"]), record_from_plain(Plan, plain["plan"], "plan")
    data = open_data(config.data, vocab=config.model.vocab, seed=config.run.seed)
    step = TrainStep(StepLayout(config, plan), build_mesh(plan.axes, jax.devices()[: plan.axes.devices]))
    place = BatchPlacer(step.layout.batch, step.mesh)
    state, losses = step.residency.initial_state(), []
    for number in range(2):
        batch = place(batch_rows(data.train, number, config.data.batch_size, place.rows))
        state, metrics = step.train(state, batch, step.arguments)
        losses.append(float(metrics.loss))
    return losses


if __name__ == "__main__":
    print(json.dumps(losses_of(json.loads(Path(sys.argv[1]).read_text()))))

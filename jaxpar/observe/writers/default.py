"""The default listeners of a run."""

from __future__ import annotations

import jax

from jaxpar.config import Config
from jaxpar.observe.environment import EnvironmentFile
from jaxpar.observe.events import Listener
from jaxpar.observe.writers.console import ConsoleView
from jaxpar.observe.writers.event_log import EventLog
from jaxpar.observe.writers.jsonl import JsonLines
from jaxpar.observe.writers.plot import LossPlot
from jaxpar.observe.writers.summary import SummaryFile
from jaxpar.observe.writers.tensorboard import TensorBoard
from jaxpar.observe.writers.wandb import WeightsAndBiases


def default_listeners(config: Config, *, verbose: bool = False) -> list[Listener]:
    """The files of the run's folder, Weights & Biases where `run.wandb` asks for it, then the screen; nothing on
    processes other than the first. With `verbose` the screen shows every decision of the plan.

    Raises `UserError` where the package for Weights & Biases is missing.
    """
    if jax.process_index() != 0:
        return []
    online = [] if config.run.wandb is None else [WeightsAndBiases(config.run.wandb)]
    files = [JsonLines(), EventLog(), EnvironmentFile(), TensorBoard(), LossPlot(), SummaryFile()]
    return [*files, *online, ConsoleView(verbose=verbose)]

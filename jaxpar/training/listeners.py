"""Who hears of a run unless somebody says otherwise."""

from __future__ import annotations

import jax

from jaxpar.config import Config
from jaxpar.observe.console import ConsoleView
from jaxpar.observe.environment import EnvironmentFile
from jaxpar.observe.event_log import EventLog
from jaxpar.observe.events import Listener
from jaxpar.observe.jsonl import JsonLines
from jaxpar.observe.plot import LossPlot
from jaxpar.observe.summary import SummaryFile
from jaxpar.observe.tensorboard import TensorBoard
from jaxpar.observe.wandb import WeightsAndBiases


def default_listeners(config: Config) -> list[Listener]:
    """The files of the run's folder, Weights & Biases where `run.wandb` asks for it, then the screen; nothing on
    processes other than the first.

    Raises `UserError` where the package for Weights & Biases is missing.
    """
    if jax.process_index() != 0:
        return []
    online = [] if config.run.wandb is None else [WeightsAndBiases(config.run.wandb)]
    files = [JsonLines(), EventLog(), EnvironmentFile(), TensorBoard(), LossPlot(), SummaryFile()]
    return [*files, *online, ConsoleView()]

"""Islands of the small decoder: runs in this process, each in a thread."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxpar.config import Config
from jaxpar.config.schema.islands import IslandsConfig
from jaxpar.training.island_jobs.run import IslandRun
from jaxpar.training.named_weights import NamedWeights
from jaxpar.training.run.run import Run
from tests.small_run import layout_of
from tests.training.runs import Recorder, SharingRun, run_config

TINY: dict[str, dict[str, Any]] = {
    "model": {"layers": 2, "embed": 8, "heads": 2, "kv_heads": 2, "mlp": 8, "vocab": 16, "vocab_multiple": 1},
    "data": {"sequence_length": 8, "batch_size": 4},
}


def island_config(folder: Path, name: str, steps: int = 8, **sections: dict[str, Any]) -> Config:
    """One of the islands that exchange through a folder in `folder` after each four steps."""
    islands = {"every": 4, "folder": str(folder / "exchange"), "wait_s": 1.0, **sections.pop("islands", {})}
    run = {"name": name, **sections.pop("run", {})}
    return run_config(folder, steps, **{**TINY, **sections, "run": run, "islands": islands})


class SharingIsland(IslandRun, SharingRun):
    """Islands of one layout share what they compile, whatever their folder."""

    def __init__(self, config: Config, **options: Any):
        super().__init__(config, **options)
        self.program = replace(self.program, islands=IslandsConfig())
        self.functions = self.functions_of.setdefault(self.program, self.functions)


def island(config: Config) -> SharingIsland:
    """An island on as many of the virtual devices as its layout takes."""
    return SharingIsland(config, devices=jax.devices()[: layout_of(config.parallel)])


def fit_together(*configs: Config) -> list[tuple[SharingIsland, Recorder]]:
    """Islands that ran at the same time to their end, with what they reported."""
    runs = [(island(config), Recorder()) for config in configs]
    with ThreadPoolExecutor(len(runs)) as threads:
        for done in [threads.submit(run.fit, [recorder]) for run, recorder in runs]:
            done.result()
    return runs


def weights_of(run: Run) -> dict[str, np.ndarray]:
    """The weights of a run by name, layers in order, in float64."""
    return {name: array.astype(np.float64) for name, array in NamedWeights(run.state.master, run.layout).items()}

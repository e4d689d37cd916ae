"""How a run starts: modules that it does without until they are used, and programs that it compiles once."""

from pathlib import Path

import jax
import pytest

from jaxpar.training.run.run import Run
from tests.processes import run_python
from tests.training.runs import run_config

HEAVY = (
    "grain", "jax.experimental.mosaic.gpu", "jax.experimental.pallas", "jinja2", "matplotlib", "orbax.checkpoint",
    "tensorboardX", "tensorstore", "tokenizers", "torch", "transformers", "wandb",
)  # fmt: skip
"""Modules that take a tenth of a second or more to import, and whose use comes later or not at all."""

UNTIL_THE_PLAN = """
import sys
from jaxpar.config import load_config
from jaxpar.observe.events import Listener
from jaxpar.training.run.trainer import Trainer

class Stop(Listener):
    def start(self, info):
        print("imported:", *(name for name in sys.argv[2:] if name in sys.modules))
        raise SystemExit

Trainer(load_config("configs/quickstart.yaml", [f"run.dir={sys.argv[1]}"])).fit([Stop()])
"""


def test_until_its_plan_is_printed_a_run_imports_nothing_heavy_that_it_may_not_need(tmp_path: Path):
    child = run_python("-c", UNTIL_THE_PLAN, tmp_path, *HEAVY)
    assert child.stdout.split("\n")[-2:] == ["imported:", ""], child.stdout + child.stderr


@pytest.mark.parametrize("offload", ["none", "host"])
def test_the_step_and_the_initial_weights_are_compiled_beside_each_other_and_once(tmp_path: Path, offload: str):
    trainer = Run(run_config(tmp_path, 1, memory={"optimizer_offload": offload}), devices=jax.devices()[:1])
    compiled: list[str] = []

    def count(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if "backend_compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        trainer.compile_with_initial()
        assert len(compiled) == (2 if offload == "none" else 1)
        trainer.compile_with_initial()
        assert len(compiled) == (2 if offload == "none" else 1)
        if offload == "none":
            jax.block_until_ready(trainer.state)
            assert len(compiled) == 2
    finally:
        jax.monitoring.unregister_event_duration_listener(count)

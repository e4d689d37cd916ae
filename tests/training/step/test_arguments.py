"""Numbers of a configuration that change no program: they are arguments of what is compiled."""

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from jaxpar.config import Config, OptimizerConfig
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.reading.options import record_of
from jaxpar.training.run.trainer import Trainer
from tests.small_run import SmallRun, small

STRUCTURE = {"name", "options"}
"""Keys of `optimizer` that choose a program; so do options that are no number with a fraction."""
CHANGED: dict[str, Any] = {
    "learning_rate": 3e-3, "weight_decay": 0.0, "clip_norm": None, "schedule": "wsd", "warmup_steps": 0,
    "decay_steps": 7, "decay_fraction": 0.5, "final_fraction": 0.2, "matrix_learning_rate": 0.1, "ema": 0.9,
}  # fmt: skip
"""All others, with another value than they have by default."""
OPTIONS = {
    "adamw": {"beta1": 0.8, "beta2": 0.9, "epsilon": 1e-6},
    "muon": {"beta1": 0.8, "beta2": 0.9, "epsilon": 1e-6, "momentum": 0.9},
    "lion": {"beta1": 0.8, "beta2": 0.9},
}
"""All options with a fraction of the optimizers that have some, with another value than by default."""
BASE = small(
    model={"layers": 1, "dropout": 0.1}, optimizer={"ema": 0.99}, data={"batch_size": 2, "sequence_length": 16}
)


def changed(config: Config) -> Config:
    """`config` with another value of every number that is an argument."""
    name = config.optimizer.name
    numbers = {key: value for key, value in CHANGED.items() if key != "matrix_learning_rate" or name == "muon"}
    return replace(
        config,
        run=replace(config.run, name="another", steps=11, seed=2**32 - 1),
        optimizer=replace(config.optimizer, options=OPTIONS.get(name, {}), **numbers),
    )


def programs(config: Config) -> tuple[str, str]:
    """The step and what makes the initial state, as they are compiled."""
    step = SmallRun(config).step
    layout, mesh = step.layout, step.mesh
    inputs = step.residency.abstract_input(), layout.abstract_batch(mesh), layout.abstract_arguments(mesh)
    first = jax.jit(layout.initial_state).lower(layout.abstract_arguments(mesh))
    return step.train.lower(*inputs).as_text(), first.as_text()


def test_every_key_of_the_optimizer_is_an_argument_or_chooses_a_program():
    assert {field.name for field in fields(OptimizerConfig)} == {*CHANGED, *STRUCTURE}
    assert all(getattr(BASE.optimizer, key) != value for key, value in CHANGED.items())
    for name in ("adamw", "muon", "lion", "adafactor"):
        usual = vars(record_of(name)())
        changed = {key: value for key, value in OPTIONS.get(name, {}).items() if usual[key] != value}
        assert set(changed) == {key for key, value in usual.items() if isinstance(value, float)}


@pytest.mark.matrix(quick=("muon",), ci=2)
@pytest.mark.parametrize("name", ["adamw", "muon", "lion", "adafactor"])
def test_other_numbers_are_the_same_program(name: str):
    config = replace(BASE, optimizer=replace(BASE.optimizer, name=name))
    assert programs(changed(config)) == programs(config)


@pytest.fixture
def cached(tmp_path: Path) -> Iterator[Path]:
    """A folder in which every program that this process compiles is stored."""
    keys = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {key: getattr(jax.config, key) for key in keys}
    for key, value in zip(keys, (str(tmp_path / "xla"), 0.0), strict=True):
        jax.config.update(key, value)
    compilation_cache.reset_cache()
    yield tmp_path / "xla"
    for key, value in before.items():
        jax.config.update(key, value)
    compilation_cache.reset_cache()


@pytest.mark.long
@pytest.mark.parametrize("offload", ["none", "host", "file"])
def test_a_run_with_other_numbers_compiles_nothing(offload: str, cached: Path, tmp_path: Path):
    """From the initial weights to the sample, wherever the state is stored."""
    config = replace(BASE, memory=replace(BASE.memory, optimizer_offload=offload))
    config = replace(
        config,
        run=replace(config.run, dir=str(tmp_path), steps=2),
        evaluation=replace(config.evaluation, batches=1, sample_tokens=2),
    )
    compiled = []
    for one in (config, replace(changed(config), run=replace(changed(config).run, steps=3))):
        Trainer(one, devices=jax.devices()[:1]).fit([])
        compiled.append({path.name for path in cached.iterdir()})
    assert compiled[1] - compiled[0] == set()


@pytest.mark.long
def test_other_numbers_are_the_same_program_with_routers_that_draw_and_a_pipeline():
    experts = ExpertsConfig(count=4, per_token=2, width=16, router="noisy_top_k")
    model = {"layers": 2, "dropout": 0.1, "experts": experts}
    config = small(model=model, optimizer={"ema": 0.99}, parallel={"pipe": 2, "microbatches": 2})
    assert programs(changed(config)) == programs(config)

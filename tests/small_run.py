"""A decoder small enough to compile in seconds, and its step on any layout: what tests of whole steps share."""

from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import jax
import numpy as np

from jaxpar.config import (
    Config,
    DataConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    PrecisionConfig,
    RunConfig,
)
from jaxpar.config.axes import axis_sizes
from jaxpar.config.reading.sections import with_values
from jaxpar.data import batch_rows, open_data
from jaxpar.layout.make_plan import make_plan, resolve_config, with_vocab
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.build import build_mesh
from jaxpar.mesh.layer_order import StackOrder
from jaxpar.runtime.batch import BatchPlacer
from jaxpar.training.step.train_step import TrainStep
from tests.same_bits import worst_difference as worst_difference

SMALL = Config(
    run=RunConfig(steps=20, compile_cache=None),
    model=ModelConfig(layers=3, embed=32, heads=8, kv_heads=8, mlp=48, vocab=64, vocab_multiple=16, init_scale=0.1),
    precision=PrecisionConfig(compute="float32"),
    optimizer=OptimizerConfig(learning_rate=1e-2, warmup_steps=2),
    data=DataConfig(source="synthetic", sequence_length=32, batch_size=8),
)
"""Heads, batch and sequence divide by 8, so that every layout of 8 devices runs."""


def small(**sections: dict[str, Any]) -> Config:
    """`SMALL` with some keys changed: `small(model={"tied": True}, parallel={"fsdp": 2})`; the loss of a bidirectional
    model is that of masked tokens."""
    config = replace(SMALL, **{name: with_values(getattr(SMALL, name), keys) for name, keys in sections.items()})
    return config if config.model.causal else replace(config, loss=LossConfig(name="masked", mask_token=0))


def with_overlap(parallel: dict[str, Any], **options: Any) -> dict[str, Any]:
    """The keys of `parallel` with more options of `parallel.overlap`."""
    return parallel | {"overlap": parallel.get("overlap", {}) | options}


def with_experts(parallel: dict[str, Any], **options: Any) -> dict[str, Any]:
    """The keys of `parallel` with more options of `parallel.experts`."""
    return parallel | {"experts": parallel.get("experts", {}) | options}


def layout_of(parallel: ParallelConfig) -> int:
    """Devices that `parallel` takes."""
    return prod(axis_sizes(parallel).values())


class SmallRun:
    """The step of `config` on as many of the virtual devices as its layout takes."""

    def __init__(self, config: Config, node_devices: int | None = None):
        devices = jax.devices()[: layout_of(config.parallel)]
        config = resolve_config(config, len(devices))
        self.data = open_data(config.data, vocab=config.model.vocab, seed=config.run.seed)
        self.config = with_vocab(config, self.data.vocab)
        plan = make_plan(self.config, devices[0], node_devices)
        self.step = TrainStep(StepLayout(self.config, plan), build_mesh(plan.axes, devices))
        self.place = BatchPlacer(self.step.layout.batch, self.step.mesh)

    def rows(self, step: int) -> dict[str, np.ndarray]:
        """The batch of a step, [row, ...]."""
        return batch_rows(self.data.train, step, self.config.data.batch_size, self.place.rows)

    def batch(self, step: int) -> dict[str, jax.Array]:
        """The batch of a step, on the devices."""
        return self.place(self.rows(step))

    def loss_and_gradients(self, step: int = 0) -> tuple[float, Any]:
        """Loss and gradients of the initial weights on the batch of a step, as NumPy."""
        loss, gradients = self.step.gradients(self.step.residency.initial_state(), self.batch(step))
        return float(loss), self.by_layer(gradients)

    def train(self, steps: int) -> tuple[list[float], Any]:
        """Losses and final weights of `steps` steps from the initial weights, as NumPy."""
        state, metrics = self.advance(steps)
        return [float(of_step.loss) for of_step in metrics], self.by_layer(state.master)

    def advance(self, steps: int) -> tuple[Any, list[Any]]:
        """The state after `steps` steps from the initial one, wherever it is stored, and the metrics of each."""
        state, metrics = self.step.residency.initial_state(), []
        for step in range(steps):
            state, of_step = self.step.residency.advance(self.step.train, state, self.batch(step), self.step.arguments)
            metrics.append(of_step)
        return state, metrics

    def by_layer(self, weights: Any) -> Any:
        """Weights or their gradients as NumPy, with layers in the order of the model, and none that pads the stack."""
        weights, layers = jax.device_get(weights), {}
        for kind, order in self.step.layout.order.stacks.items():
            own = weights["layers"][kind]
            layers[kind] = jax.tree.map(lambda stack, o=order: stack[o.row_of_layer], own)
        return weights | {"layers": layers}

    def by_row(self, weights: Any) -> Any:
        """Weights with layers in the order of the model as the step has them; rows that pad the stack are zero."""

        def stack(layers: np.ndarray, order: StackOrder) -> np.ndarray:
            rows = np.zeros((order.rows, *layers.shape[1:]), layers.dtype)
            rows[order.row_of_layer] = layers
            return rows

        layers = {}
        for kind, order in self.step.layout.order.stacks.items():
            own = jax.tree.map(partial(stack, order=order), weights["layers"][kind])
            layers[kind] = own
        return weights | {"layers": layers}

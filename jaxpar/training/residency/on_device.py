"""State on the device, and the functions that every residency has."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property, partial
from pathlib import Path

import jax
from jax.sharding import Mesh, PartitionSpec
from jax.stages import Wrapped
from jaxtyping import Array, Float, PyTree

from jaxpar.interop.mapping.form import ReadPart
from jaxpar.layout.islands import ISLAND_WEIGHTS, ROUND_START, partition_over_islands, replicate_over_islands
from jaxpar.layout.state import TrainState, join_weights, weight_states, without_frozen
from jaxpar.layout.step_arguments import StepArguments
from jaxpar.layout.step_layout import StepLayout, shardings
from jaxpar.layout.step_options import cpu_options, step_options
from jaxpar.memory.disk_array import copied
from jaxpar.memory.streaming import DEVICE
from jaxpar.mesh.build import mapped
from jaxpar.mesh.layer_order import LAYERS
from jaxpar.mesh.materialize import to_optimizer, to_storage, zero_accumulators
from jaxpar.mesh.parameters import ModelTree, Weights
from jaxpar.model.decoder import Batch
from jaxpar.optim.norm import squares
from jaxpar.optim.optimizer import AVERAGE
from jaxpar.training.residency.island_metrics import metrics_of_islands
from jaxpar.training.residency.islands import IslandStep
from jaxpar.training.residency.saved_state import SavedState
from jaxpar.training.residency.weight_update import CompiledStep, Measure, UpdateFacts, WeightUpdate, weight_updates


class OnDevice:
    """Storage of master weights and moments between steps, and their transfer to the device and back.

    Here all of the state is on the device, and the update is part of the compiled step; other residencies are
    subclasses. The functions up to `updated` run inside the step's map, on the parts
    of one device; the others outside.
    """

    asynchronous = True
    """Whether `advance` returns before the devices are done."""

    def __init__(self, layout: StepLayout, mesh: Mesh):
        self.layout, self.mesh = layout, mesh

    @property
    def folder(self) -> Path | None:
        """Folder of the state's files; None if the state is in memory."""
        return None

    @cached_property
    def updates(self) -> list[WeightUpdate]:
        """The optimizer, weight by weight."""
        return weight_updates(self.layout)

    # ---- inside the map

    def marked(self, master: Weights) -> Weights:
        """The weights passed to a function, each typed by the memory that it is in."""
        return master

    def opened(self, master: Weights) -> tuple[Weights, Weights]:
        """Weights in storage placement, from the weights passed to the step, with the frozen ones among them, and zeros
        in gradient placement for those that are trained; a `QuantizedStack` is on the device. Layers in host memory
        stay as they are."""
        moved = self.here(
            {part: weights for part, weights in master.items() if not (self.layers_on_host and part == LAYERS)}
        )
        return master | to_storage(moved, self.layout.placements), self.accumulators()

    @property
    def layers_on_host(self) -> bool:
        """Whether layers are fetched from host memory with each use (`memory.weights_offload`)."""
        return self.layout.plan.weights_offload == "host"

    def here(self, master: Weights) -> Weights:
        """Master weights on the device."""
        return master

    def accumulators(self) -> Weights:
        """Zeros in gradient placement for all trained weights."""
        zeros = lambda part, weights: zero_accumulators(weights, self.layout.placements, part=part)
        return {part: zeros(part, weights) for part, weights in self.layout.trained.items()}

    def reduced(self, accumulated: Weights, scale: Float[Array, ""]) -> Weights:
        """The accumulators of a step in optimizer placement, divided by the loss scale."""
        return jax.tree.map(lambda g: g / scale, to_optimizer(accumulated, self.layout.placements))

    def squares(self, gradients: Weights) -> Weights:
        """Sum of the squares of each weight's gradient: [rows] of a stacked weight, else a scalar."""
        return squares(gradients, self.layout.master, self.layout.trained)

    def full(self, gradients: Weights) -> Weights:
        """Gradients as arrays on the device."""
        return gradients

    def updated(self, state: TrainState, gradients: Weights, facts: UpdateFacts) -> TrainState:
        """`state` with master weights and optimizer state after a step; the same bits where it does not apply."""
        weights, leaves = weight_states(state.master, state.optimizer), jax.tree.leaves(gradients)
        each = zip(self.updates, weights, leaves, strict=True)
        new = [update(weight, gradient, facts) for update, weight, gradient in each]
        return join_weights(new, state)

    # ---- outside

    def compile_initial(self) -> None:
        """Compile the program of `initial_state`, if that is one program; any thread may call this."""
        self._initial  # noqa: B018 (compiled when it is first read)

    def initial_state(self) -> TrainState:
        """The state before the first step, made shard by shard; the weights are the same bits on every mesh."""
        return self._initial(self.layout.arguments)

    @cached_property
    def _initial(self) -> Callable[[StepArguments], TrainState]:
        shardings, options = self.layout.state_shardings(self.mesh), cpu_options(self.mesh)
        made = jax.jit(self.layout.initial_state, out_shardings=shardings, compiler_options=options)
        return made.lower(self.layout.arguments).compile()

    def adopted(self, state: TrainState) -> TrainState:
        """A restored state in the form that steps take."""
        return state

    def with_weights(self, state: TrainState, weights: ModelTree[ReadPart]) -> TrainState:
        """`state` with other master weights, and the moving average of them if it has one. `state` is used up.

        `weights` has in place of each weight a function that returns a part of it; this process calls it for the parts
        that its devices hold, one weight after the other.
        """

        def replaced(old: jax.Array, read: ReadPart) -> jax.Array:
            shape, where = old.shape, old.sharding
            old.delete()
            part = cache(read)  # replicas have the same ones
            return jax.make_array_from_callback(shape, where, part)

        average = state.optimizer.get(AVERAGE)
        for leaf in jax.tree.leaves(average):
            leaf.delete()
        master = jax.tree.map(replaced, state.master, weights)
        if average is not None:
            state = state._replace(optimizer={**state.optimizer, AVERAGE: jax.tree.map(copied, master)})
        if self.layout.islands:
            optimizer = state.optimizer
            each = {name: self._island_copies(master) for name in (ISLAND_WEIGHTS, ROUND_START) if name in optimizer}
            state = state._replace(optimizer={**optimizer, **each})
        return state._replace(master=master)

    def _island_copies(self, master: Weights) -> Weights:
        """Copies of the weights, one of each island."""
        where = self.layout.state_shardings(self.mesh).optimizer[ISLAND_WEIGHTS]
        copies = partial(replicate_over_islands, islands=self.layout.plan.axes.islands)
        return jax.jit(lambda master: copies(jax.device_put(master, DEVICE)), out_shardings=where)(master)

    def train(self, measure: Measure, metrics: PyTree[PartitionSpec]) -> Wrapped:
        """The jitted step, of `abstract_input`, a batch and arguments; `metrics` has the partition of each metric."""
        layout = self.layout

        def _train(state: TrainState, batch: Batch, arguments: StepArguments) -> tuple[TrainState, PyTree]:
            if layout.islands:
                return IslandStep(layout, measure, self.updated)(state, batch, arguments)
            measured = measure(state, batch, arguments)
            new = self.updated(state, measured.gradients, measured.facts)
            return measured.following._replace(master=new.master, optimizer=new.optimizer), measured.metrics

        inputs = layout.state, layout.batch.partitions, PartitionSpec()
        if layout.islands:
            metrics = partition_over_islands(metrics)
        step = mapped(_train, self.mesh, layout.plan.dtypes.compute, inputs, (layout.state, metrics))
        placed = layout.state_shardings(self.mesh), shardings(self.mesh, metrics)
        options = step_options(layout.plan, self.mesh)
        return jax.jit(self.placing(step), donate_argnums=0, out_shardings=placed, compiler_options=options)

    def placing(self, step: CompiledStep) -> CompiledStep:
        """`step`, compiled for the memory kinds of the state's arrays."""
        return step

    def abstract_input(self) -> TrainState:
        """Shapes, dtypes and shardings of what the jitted step reads of the state."""
        return self.layout.abstract_state(self.mesh)

    def advance(
        self, train: CompiledStep, state: TrainState, batch: Batch, arguments: StepArguments
    ) -> tuple[TrainState, PyTree]:
        """The state and the metrics after a step with `train`, compiled or not."""
        state, metrics = train(state, batch, arguments)
        return state, metrics_of_islands(metrics) if self.layout.islands else metrics

    def readable(self, weights: Weights) -> Weights:
        """Master weights, or their average, of a state, as arrays that evaluation reads."""
        return weights

    def arrays(self, state: TrainState) -> dict[str, PyTree]:
        """The arrays of `state` that are in memory, by purpose."""
        return {
            "master weights": state.master,
            "frozen weights": state.frozen,
            "moments": {name: tree for name, tree in state.optimizer.items() if name != AVERAGE},
            "average of the weights": state.optimizer.get(AVERAGE),
            **{kind.title: state.carried[name] for name, kind in self.layout.carried.items()},
        }

    def saved(self) -> SavedState:
        """The state without frozen weights in the form of a checkpoint."""
        return SavedState(without_frozen(self.layout.abstract_state(self.mesh)), self.layout.order, self.folder)

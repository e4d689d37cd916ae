"""The specs, placements and shapes of a plan's step: without devices, and without compiling."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from jaxpar.attention.balance import sequence_order
from jaxpar.config import Config, UserError
from jaxpar.config.axes import BATCH_AXES, DATA_AXES
from jaxpar.config.parts import OBJECTIVES, implementation
from jaxpar.config.plan import Plan
from jaxpar.hardware.host import PINNED
from jaxpar.layers.inputs.input import input_class
from jaxpar.layout.choices.pipeline import layer_order, pipeline_program, schedule_of
from jaxpar.layout.choices.transport import transport_of
from jaxpar.layout.islands import initial_state_of_islands, state_layout_of_islands, with_outer_state
from jaxpar.layout.state import (
    CarriedRequest,
    TrainState,
    carried_of,
    initial_state,
    join_weights,
    state_layout,
    weight_states,
)
from jaxpar.layout.step_arguments import StepArguments, step_arguments
from jaxpar.mesh.build import abstract_mesh
from jaxpar.mesh.layer_order import LayerOrder
from jaxpar.mesh.parameters import Nested, Partitions, Specs, initial_weights, map_specs, select, subtree_like
from jaxpar.mesh.placements import Placements, place
from jaxpar.mesh.rules import compute_rules
from jaxpar.model.decoder import decoder_specs, layer_of_kind
from jaxpar.optim.norm import squares_layout
from jaxpar.optim.optimizer import Optimizer, make_optimizer
from jaxpar.pipeline.execution.program import PipelineProgram
from jaxpar.pipeline.schedules import Schedule as PipelineSchedule
from jaxpar.runtime.batch import CONTEXT, MASK, BatchLayout, Field, union
from jaxpar.runtime.carried import Carried
from jaxpar.runtime.objective import Objective

type AnyMesh = Mesh | AbstractMesh


@dataclass(frozen=True, eq=False)
class StepLayout:
    """The specs, placements and shapes of a step; raises `UserError` if moments do not fit the layout."""

    config: Config
    plan: Plan

    def __post_init__(self) -> None:
        self.optimizer.check_layout(self.config.optimizer.name, self.master, self.plan.axes)
        if self.islands and not self.order.is_ordered:
            raise UserError(
                f"islands.every: {self.config.islands.every} needs pipeline ranks with layers in the model's order; "
                "expected one chunk on each (parallel.virtual_stages), all as long"
            )

    @cached_property
    def order(self) -> LayerOrder:
        """The order of the layers in the stacks of weights."""
        return layer_order(self.plan, self.config.model)

    @cached_property
    def specs(self) -> Specs:
        """The spec of each weight of the model."""
        return decoder_specs(self.config, self.order)

    @cached_property
    def trained(self) -> Specs:
        """Specs of the trained weights."""
        return select(self.specs, self._trains, True)

    @cached_property
    def frozen(self) -> Specs:
        """Specs of the frozen weights."""
        return select(self.specs, self._trains, False)

    @cached_property
    def _trains(self) -> Nested[bool]:
        return map_specs(lambda spec: spec.trained, self.specs)

    @cached_property
    def placements(self) -> Placements:
        """The placements of the weights, by role."""
        plan = self.plan
        rules = compute_rules(shared_embed_and_head=plan.pipe_ends == "shared")
        return place(
            self.specs, plan.axes, plan.zero, plan.dtypes, rules,
            over_replicas=plan.shard_state_over_replicas.name, transport=transport_of(plan),
        )  # fmt: skip

    @cached_property
    def master(self) -> Partitions:
        """Partitions of the master weights: of all that is trained."""
        return subtree_like(self.placements.optimizer.layout, self.trained)

    @property
    def weights(self) -> Partitions:
        """Partitions of all weights of a state (`all_weights`)."""
        return self.placements.optimizer.layout

    @cached_property
    def arguments(self) -> StepArguments:
        """The numbers of `config` that steps take as arguments, as NumPy scalars."""
        return step_arguments(self.config)

    @cached_property
    def optimizer(self) -> Optimizer:
        """The rules of all weights."""
        dtypes, specs = self.plan.dtypes, self.trained
        return make_optimizer(
            self.config.optimizer, moments=dtypes.moments, matrix_dtype=dtypes.matrix, specs=specs, layout=self.master
        )

    @cached_property
    def state(self) -> TrainState:
        """Partitions of the state."""
        frozen = subtree_like(self.placements.storage.layout, self.frozen)
        state = state_layout(self.master, frozen, self.optimizer, self.carried)
        return state_layout_of_islands(state, self.config.islands.eager) if self.islands else state

    @property
    def islands(self) -> bool:
        """Whether the weights that are trained are those of islands, which an outer optimizer joins."""
        return self.config.islands.share_mesh

    @property
    def outer_on_host(self) -> bool:
        """Whether the state that islands share is in pinned host memory."""
        return self.islands and self.config.islands.offload == "host"

    @cached_property
    def carried(self) -> dict[str, Carried[Any]]:
        """State that features carry from step to step, by name."""
        return carried_of(self.carried_request)

    @property
    def carried_request(self) -> CarriedRequest:
        """The facts that carried state depends on."""
        return CarriedRequest(self.config, self.plan, self.placements, self.order)

    @cached_property
    def squares(self) -> Partitions:
        """Partitions of the squares of gradients, weight by weight."""
        return squares_layout(self.master, self.trained)

    @cached_property
    def schedule(self) -> PipelineSchedule:
        """The pipeline schedule of the plan."""
        return schedule_of(self.plan)

    @cached_property
    def program(self) -> PipelineProgram:
        """The program that the executor runs."""
        return pipeline_program(self.plan)

    @cached_property
    def objective(self) -> Objective:
        """The loss that a step minimizes."""
        return implementation(OBJECTIVES[self.config.loss.name].made_by)(self.config)

    @cached_property
    def batch(self) -> BatchLayout:
        """The batch of a training step."""
        asked = [
            field
            for field in self._declared
            if field.optional and getattr(self.config.data, field.name, True) is not None
        ]
        return replace(self.evaluated, fields=union(self.evaluated.fields, asked))

    @property
    def _declared(self) -> list[Field]:
        """The fields that the input declares, and layers of each kind."""
        layers = [field for kind in self.order.stacks for field in layer_of_kind(self.config, kind).fields]
        return [*input_class(self.config.model).fields, *layers]

    @cached_property
    def evaluated(self) -> BatchLayout:
        """The batch of an evaluation."""
        data, microbatches = self.config.data, self.plan.microbatches
        shape = microbatches, data.batch_size // microbatches, data.sequence_length
        read = [field for field in self._declared if not field.optional and field.per != "step"]
        order = sequence_order(self.plan.context_order.name, shape[-1], self.plan.axes.context // self.plan.ulysses)
        rows = BATCH_AXES if self.islands else DATA_AXES
        return BatchLayout(
            union(CONTEXT, (MASK,), self.objective.fields, read), shape, order, rows, self.plan.axes.islands
        )

    @cached_property
    def mesh(self) -> AbstractMesh:
        """The mesh without devices."""
        return abstract_mesh(self.plan.axes)

    @cached_property
    def weight_names(self) -> tuple[str, ...]:
        """The name of each leaf of `trained`, such as `layers.all.mlp.up`."""
        paths = jax.tree_util.tree_leaves_with_path(self.trained)
        return tuple(jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths)

    def state_shardings(self, mesh: AnyMesh | None = None) -> TrainState:
        """The shardings of the state between steps; what is offloaded, or on disk, has those of pinned host memory."""
        everywhere = shardings(self.mesh if mesh is None else mesh, self.state)
        pinned = lambda sharding: sharding.with_memory_kind(PINNED)
        if self.outer_on_host:
            return with_outer_state(everywhere, pinned)
        if self.plan.optimizer_offload == "none":
            return everywhere
        offloaded = lambda state: jax.tree.map(pinned, state)
        each = zip(self.weight_names, weight_states(everywhere.master, everywhere.optimizer), strict=True)
        states = [state if name in self.plan.resident_weights else offloaded(state) for name, state in each]
        return join_weights(states, everywhere)

    def initial_state(self, arguments: StepArguments) -> TrainState:
        """The state before the first step; the weights are bit for bit the same on every mesh. To be traced."""
        master, frozen = (initial_weights(specs, arguments.seed, self.order) for specs in (self.trained, self.frozen))
        dtypes = subtree_like(self.placements.storage_dtypes, frozen)
        frozen = jax.tree.map(lambda weight, dtype: weight.astype(dtype), frozen, dtypes)
        state = initial_state(master, frozen, self.optimizer, self.carried)
        if not self.islands:
            return state
        return initial_state_of_islands(state, self.plan.axes.islands, self.config.islands.eager)

    @cached_property
    def state_shapes(self) -> TrainState:
        """Global shapes and dtypes of the state."""
        return jax.eval_shape(self.initial_state, self.arguments)

    def abstract_state(self, mesh: AnyMesh | None = None) -> TrainState:
        """Shapes, dtypes and shardings of the state: what a checkpoint is restored into."""
        put = lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
        return jax.tree.map(put, self.state_shapes, self.state_shardings(mesh))

    def abstract_arguments(self, mesh: AnyMesh | None = None) -> StepArguments:
        """Shapes and shardings of `arguments` on the devices."""
        everywhere = NamedSharding(self.mesh if mesh is None else mesh, PartitionSpec())
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((), leaf.dtype, sharding=everywhere), self.arguments)

    def abstract_batch(self, mesh: AnyMesh | None = None) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and shardings of a placed batch of a training step."""
        return self.batch.abstract(self.mesh if mesh is None else mesh)


def shardings(mesh: AnyMesh, layout: Any) -> Any:
    """`NamedSharding`s on a mesh for a tree of partitions."""
    is_leaf = lambda x: isinstance(x, PartitionSpec)
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), layout, is_leaf=is_leaf)

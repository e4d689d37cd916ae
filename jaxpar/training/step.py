"""The training step: one `shard_map`, manual over every mesh axis, from state and batch to state and metrics."""

from __future__ import annotations

from functools import cache, cached_property, wraps
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from jaxpar.config import Config
from jaxpar.config.counting import kv_heads
from jaxpar.config.plan import Plan
from jaxpar.memory.chunks import groups_to_keep
from jaxpar.memory.remat import LAYER_INPUT, remat_policy
from jaxpar.memory.streaming import PINNED, brought, rows_of_piece, streamed, to_host
from jaxpar.mesh.axes import AXES, DATA_AXES
from jaxpar.mesh.collectives import reduce_sum
from jaxpar.mesh.layer_order import Parted
from jaxpar.mesh.materialize import to_optimizer, to_storage, zero_sinks
from jaxpar.mesh.parameters import Tree, initial_weights, map_specs
from jaxpar.mesh.placements import place
from jaxpar.model.decoder import Batch, DecoderStages, decoder_specs
from jaxpar.model.embedding import vocab_axes
from jaxpar.model.layer_kind import Keep, keeps_by_kind, split_keeps
from jaxpar.optim.moments import check_blocks
from jaxpar.optim.norm import global_norm, squares, squares_layout
from jaxpar.optim.optimizer import OptimizerState, make_optimizer
from jaxpar.optim.rule import is_stacked
from jaxpar.optim.schedule import Schedule, schedule
from jaxpar.pipeline.executor import evaluate, execute
from jaxpar.precision.loss_scale import initial_loss_scale, next_loss_scale
from jaxpar.training.attend import make_attend
from jaxpar.training.filed_update import FiledUpdate
from jaxpar.training.initial_weights import initial_by_weights
from jaxpar.training.pipeline import forward_program, layer_order, pipeline_program, schedule_of
from jaxpar.training.saved_state import SavedState
from jaxpar.training.state import TrainState, initial_state, state_layout
from jaxpar.training.weight_update import UpdateFacts, WeightUpdate, joined, weight_states, weight_updates
from jaxpar.training.weights_away import AwayGradient, away_gradients, layers_away, parted_sinks

type Layout = Any

TOKEN_AXES = (*DATA_AXES, "context")
"""Axes over which ranks hold different tokens when a loss is counted."""


class StepMetrics(NamedTuple):
    """What one step reports, the same on every device."""

    loss: Float[Array, ""]
    """Mean negative log-likelihood in nats over the unmasked tokens of the global batch."""
    grad_norm: Float[Array, ""]
    """Global norm of the gradient before clipping."""
    learning_rate: Float[Array, ""]
    tokens: Float[Array, ""]
    """Unmasked tokens in the global batch."""
    finite: Bool[Array, ""]
    """Whether the update was applied."""
    skipped_in_row: Int[Array, ""]
    loss_scale: Float[Array, ""]
    squares: Tree
    """Sum of the squares of each weight's gradient before clipping: [rows] of a stacked weight, else a scalar."""
    report: dict[str, Float[Array, ""]]
    """What layers report, summed over layers and tokens, for each unmasked token."""


class TrainStep:
    """The compiled functions of a run on one mesh, and where their arguments lie."""

    def __init__(self, config: Config, plan: Plan, mesh: Mesh, fraction: Schedule | None = None):
        """`fraction` is the share of its peak that the learning rate has, by default the schedule of `config`."""
        self.config, self.plan, self.mesh = config, plan, mesh
        self.fraction = schedule(config.optimizer, config.run.steps) if fraction is None else fraction
        self.order = layer_order(plan, config.model)
        self.specs = decoder_specs(config, self.order)
        shared_ends = plan.pipe_ends == "shared"
        self.placements = place(
            self.specs, plan.axes, plan.zero, plan.dtypes, kv_heads(config.model), shared_ends=shared_ends
        )
        self.master_layout = self.placements.optimizer.layout
        check_blocks(plan.dtypes.moments, self.specs, self.master_layout, plan.axes)
        self.optimizer = make_optimizer(
            config.optimizer,
            steps=config.run.steps,
            moments=plan.dtypes.moments,
            specs=self.specs,
            layout=self.master_layout,
            fraction=self.fraction,
        )
        self.state_layout = state_layout(self.master_layout, self.optimizer)
        self.offloads = plan.optimizer_offload != "none"
        """Whether master weights and moments rest elsewhere than on the device."""
        self.filed = FiledUpdate(self) if plan.optimizer_offload == "file" else None
        self.squares_layout = squares_layout(self.master_layout, self.specs)
        self.learning_rate = lambda step: config.optimizer.learning_rate * self.fraction(step)
        self.schedule = schedule_of(plan)
        self.program = pipeline_program(plan)

    def stages(self, *, train: bool) -> DecoderStages:
        """The model's parts; without `train` there is no dropout."""
        attend = make_attend(self.config, self.plan)
        policy = cache(lambda kept: remat_policy(dict(kept)))
        keep = lambda run: Keep(
            run.layers, policy(tuple(run.activations.items())), run.activations[LAYER_INPUT] == "offload"
        )
        keeps = keeps_by_kind(self.order.slots, split_keeps(list(map(keep, self.plan.runs)), self.layers_away))
        tiles, split = (self.plan.loss_tiles, self.plan.mlp_tiles), self.schedule.splits_backward
        loss = self.plan.loss.name
        return DecoderStages(self.config, self.placements, attend, keeps, train, self.order, split, *tiles, loss)

    def shardings(self, layout: Layout) -> Any:
        """`NamedSharding`s on this mesh for a tree of partitions."""
        is_leaf = lambda x: isinstance(x, PartitionSpec)
        return jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), layout, is_leaf=is_leaf)

    def batch_layout(self) -> dict[str, PartitionSpec]:
        """Partition of each array of a batch, [microbatch, row, ...]."""
        tokens = PartitionSpec(None, DATA_AXES, "context")
        names = ("tokens", "labels", "mask", "segments", "positions", "slots")
        return {**dict.fromkeys(names, tokens), "examples": PartitionSpec(None, DATA_AXES)}

    @property
    def batch_shape(self) -> tuple[int, int, int]:
        """[microbatch, row, token] of a global batch."""
        data, microbatches = self.config.data, self.plan.microbatches
        return microbatches, data.batch_size // microbatches, data.sequence_length

    def abstract_batch(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and shardings of a placed batch, for compiling before there is one; no device need be at hand."""
        return {
            name: jax.ShapeDtypeStruct(
                self.batch_shape[: 2 if name == "examples" else 3],
                jnp.float32 if name == "mask" else jnp.int32,
                sharding=sharding,
            )
            for name, sharding in self.shardings(self.batch_layout()).items()
        }

    def shard_map(self, function: Any, in_layouts: Any, out_layouts: Any) -> Any:
        """`function` on every device of the mesh, with varying types checked.

        Under `precision.compute: float32` matmuls are float32 on GPUs too, which would multiply in TF32 by default.
        """
        precision = "highest" if self.plan.dtypes.compute == "float32" else "default"

        @wraps(function)
        def precise(*arguments: Any) -> Any:
            with jax.default_matmul_precision(precision):
                return function(*arguments)

        return jax.shard_map(precise, mesh=self.mesh, in_specs=in_layouts, out_specs=out_layouts, check_vma=True)

    def abstract_state(self) -> TrainState:
        """Shapes, dtypes and shardings of the state: what a checkpoint is restored into."""
        shapes = jax.eval_shape(self._initial)
        put = lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
        return jax.tree.map(put, shapes, self.state_shardings)

    @property
    def state_shardings(self) -> TrainState:
        """Where the state lies between steps; what is offloaded lies in pinned host memory."""
        on_device = self.shardings(self.state_layout)
        place = lambda sharding, away: sharding.with_memory_kind(PINNED) if away else sharding
        resting = jax.tree.map(place, (on_device.master, on_device.optimizer), self.rests_elsewhere)
        return on_device._replace(master=resting[0], optimizer=resting[1])

    @property
    def rests_elsewhere(self) -> tuple[Tree, OptimizerState]:
        """Whether each array of (master weights, optimizer state) rests elsewhere than on the device."""
        layout = self.shardings(self.state_layout)
        states = [
            jax.tree.map(lambda _, number=number: self.offloads and number not in self.resident, state)
            for number, state in enumerate(weight_states(layout.master, layout.optimizer))
        ]
        average = self.config.optimizer.ema is not None
        return joined(states, jax.tree.structure(self.specs), average=average)

    @cached_property
    def layers_away(self) -> int:
        """Layers whose weights and gradients rest in host memory, the first ones."""
        return layers_away(self)

    @cached_property
    def resident(self) -> frozenset[int]:
        """Weights, by their number, whose state stays on the device though that of others is offloaded."""
        if self.plan.optimizer_offload != "host":
            return frozenset()
        shapes = jax.eval_shape(self._initial)
        put = lambda leaf, sharding: prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        sizes = jax.tree.map(put, shapes, self.shardings(self.state_layout))
        each = [sum(jax.tree.leaves(state)) for state in weight_states(sizes.master, sizes.optimizer)]
        return frozenset(groups_to_keep(each, self.plan.optimizer_resident))

    @cached_property
    def saved_state(self) -> SavedState:
        """The state as checkpoints hold it."""
        return SavedState(self.abstract_state(), self.order, None if self.filed is None else self.filed.folder)

    def _initial(self) -> TrainState:
        master = initial_weights(self.specs, self.config.run.seed, self.order)
        return initial_state(master, self.optimizer, initial_loss_scale(self.config.precision))

    def initial_state(self) -> TrainState:
        """The state before the first step, made shard by shard; the weights are the same bits on every mesh."""
        state = self._make_initial()
        return state if self.filed is None else self.filed.rest(state)

    @cached_property
    def _make_initial(self) -> Any:
        if self.offloads:
            return lambda: initial_by_weights(self, self._initial)
        return jax.jit(self._initial, out_shardings=self.shardings(self.state_layout))

    @cached_property
    def train(self) -> Any:
        """Compiled (state, batch) -> (state, `StepMetrics`); the old state's buffers are reused.

        Where the state rests in files, what `advance` needs of it.
        """
        whole: Any = PartitionSpec()
        report = dict.fromkeys(self.stages(train=True).loop.reports, whole)
        metrics = StepMetrics(*[whole] * len(StepMetrics._fields))._replace(squares=self.squares_layout, report=report)
        if self.filed is not None:
            lean, facts = self.state_layout._replace(optimizer=None), UpdateFacts(whole, whole, whole)
            results = self.master_layout, facts, lean._replace(master=None), metrics
            measured = self.shard_map(self._measured, (lean, self.batch_layout()), results)
            return jax.jit(wraps(self._train)(measured), out_shardings=self.shardings(results))
        layouts = (self.state_layout, self.batch_layout())
        step = self.shard_map(self._train, layouts, (self.state_layout, metrics))

        @wraps(self._train)
        def train(state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
            if self.offloads:  # shapes alone do not say in which memory an array lies
                states = [
                    own if number in self.resident else to_host(own)
                    for number, own in enumerate(weight_states(state.master, state.optimizer))
                ]
                average = state.optimizer.average is not None
                master, optimizer = joined(states, jax.tree.structure(state.master), average=average)
                state = state._replace(master=master, optimizer=optimizer)
            return step(state, batch)

        return jax.jit(train, donate_argnums=0, out_shardings=(self.state_shardings, self.shardings(metrics)))

    def abstract_input(self) -> TrainState:
        """Shapes, dtypes and shardings of what `train` reads of the state."""
        return self.abstract_state() if self.filed is None else self.filed.abstract_lean()

    def advance(self, train: Any, state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        """Take a step with `train`, compiled or not."""
        if self.filed is None:
            return train(state, batch)
        gradients, facts, following, metrics = train(self.filed.lean(state), batch)
        leaves = jax.tree.leaves(gradients)
        del gradients  # so that each can be dropped
        self.filed.apply(state, leaves, facts)
        return following._replace(master=state.master, optimizer=state.optimizer), metrics

    def readable_weights(self, weights: Tree) -> Tree:
        """Master weights of a state, or their average, as `evaluate` and samples read them."""
        return weights if self.filed is None else jax.tree.map(self.filed.readable, weights)

    @cached_property
    def evaluate(self) -> Any:
        """Compiled (master weights, batch) -> (sum of the negative log-likelihood in nats, unmasked tokens)."""
        whole = PartitionSpec(), PartitionSpec()
        return jax.jit(self.shard_map(self._evaluate, (self.master_layout, self.batch_layout()), whole))

    @cached_property
    def gradients(self) -> Any:
        """Compiled (state, batch) -> (loss, gradients in optimizer placement): what tests and analysis look at."""
        whole = PartitionSpec()
        step = self.shard_map(
            self._whole_gradients, (self.state_layout, self.batch_layout()), (whole, self.master_layout, whole)
        )
        compiled = jax.jit(step)
        return lambda state, batch: compiled(state, batch)[:2]

    def stored_weights(self, master: Tree) -> Tree:
        """Master weights from where they rest to storage placement, inside the step's map."""
        layers, away = master["layers"], self.layers_away
        if self.plan.optimizer_offload == "host":
            dtype = self.placements.storage.dtype
            with jax.named_scope("stored_weights"):
                leaves, structure = jax.tree.flatten(master)
                stacked = jax.tree.leaves(map_specs(is_stacked, self.specs))
                bring = lambda weight, first: brought(weight, dtype, rows_of_piece(weight), first)
                there = [
                    a if number in self.resident else bring(a, away if layered else 0)
                    for number, (a, layered) in enumerate(zip(leaves, stacked, strict=True))
                ]
                master = structure.unflatten(there)
        stored = to_storage(master, self.placements)
        return stored | {"layers": Parted(layers, stored["layers"])} if away else stored

    def sinks(self, weights: Tree) -> Tree:
        """What the gradients of weights (in storage placement) accumulate in."""
        return {
            part: parted_sinks(self, own) if isinstance(own, Parted) else zero_sinks(own, self.placements, part=part)
            for part, own in weights.items()
        }

    def _gradients(self, state: TrainState, batch: Batch) -> tuple[Float[Array, ""], Tree, Float[Array, ""], Any]:
        """Loss, its gradient in optimizer placement, the global count of unmasked tokens, and what layers report."""
        stages = self.stages(train=True)
        weights = self.stored_weights(state.master)
        sinks = self.sinks(weights)
        count = reduce_sum(batch["mask"].sum(), TOKEN_AXES)
        scale = state.loss_scale.value
        seed = scale / jnp.maximum(count, 1.0)
        gradients, nll, report = execute(self.program, stages, weights, sinks, batch, seed)
        found = gradients["layers"]
        if isinstance(found, Parted):
            gradients = gradients | {"layers": found.device}
        gradients = jax.tree.map(lambda g: g / scale, to_optimizer(gradients, self.placements))
        if isinstance(found, Parted):
            gradients |= {"layers": away_gradients(self, found, gradients["layers"], scale)}
        loss = self._sum(nll) / jnp.maximum(count, 1.0)
        report = {name: reduce_sum(value, AXES) / jnp.maximum(count, 1.0) for name, value in report.items()}
        return loss, gradients, count, report

    def _whole_gradients(self, state: TrainState, batch: Batch) -> tuple[Float[Array, ""], Tree, Float[Array, ""]]:
        loss, gradients, count, _ = self._gradients(state, batch)
        whole = lambda leaf: leaf.whole() if isinstance(leaf, AwayGradient) else leaf
        return loss, jax.tree.map(whole, gradients), count

    def _sum(self, nll: Float[Array, ""]) -> Float[Array, ""]:
        """The sum over the tokens and pipeline stages of all ranks; those that split the vocabulary have it alike."""
        alike = vocab_axes(self.placements)
        return reduce_sum(nll, [axis for axis in AXES if axis not in alike])

    def _train(self, state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        gradients, facts, following, metrics = self._measured(state, batch)
        master, optimizer = self._updated(state, gradients, facts)
        return following._replace(master=master, optimizer=optimizer), metrics

    def _measured(self, state: TrainState, batch: Batch) -> tuple[Tree, UpdateFacts, TrainState, StepMetrics]:
        """Gradients and what the update must know; the state after the step, less what the update makes; metrics."""
        loss, gradients, count, report = self._gradients(state, batch)
        own = lambda leaf: leaf.squares() if isinstance(leaf, AwayGradient) else None
        sums = squares(gradients, self.master_layout, self.specs, own)
        norm = global_norm(sums, self.squares_layout)
        finite = jnp.isfinite(norm) & jnp.isfinite(loss)
        skipped = jnp.where(finite, 0, state.skipped_in_row + 1)
        following = TrainState(
            master=None,
            optimizer=None,
            step=state.step + 1,
            applied=state.applied + finite.astype(jnp.int32),
            skipped_in_row=skipped,
            loss_scale=next_loss_scale(state.loss_scale, finite, self.config.precision),
        )
        rate = self.learning_rate(state.applied)
        metrics = StepMetrics(loss, norm, rate, count, finite, skipped, state.loss_scale.value, sums, report)
        return gradients, UpdateFacts(norm, finite, state.applied), following, metrics

    def _updated(self, state: TrainState, gradients: Tree, facts: UpdateFacts) -> tuple[Tree, OptimizerState]:
        """Master weights and what the optimizer keeps after a step; the same bits where the step is not finite."""
        weights, new = weight_states(state.master, state.optimizer), []
        leaves = jax.tree.leaves(gradients)
        for number, (update, weight, gradient) in enumerate(zip(self.weight_updates, weights, leaves, strict=True)):
            if not self.offloads or number in self.resident:
                new.append(update(weight, gradient, facts))
                continue
            # XLA would fetch the first piece of every weight at once, and keep what the forward read of it until now.
            weight, facts = lax.optimization_barrier((weight, facts))
            if isinstance(gradient, AwayGradient):
                changed = gradient.update(update, weight, facts)
            else:
                piece = lambda now, part, update=update, facts=facts: update(now, part, facts)
                changed = streamed(piece, weight, gradient, update.rows(weight))
            weight, facts = lax.optimization_barrier((changed, facts))
            new.append(weight)
        return joined(new, jax.tree.structure(gradients), average=state.optimizer.average is not None)

    @cached_property
    def weight_updates(self) -> list[WeightUpdate]:
        """The optimizer, weight by weight."""
        return weight_updates(
            self.config.optimizer,
            steps=self.config.run.steps,
            moments=self.plan.dtypes.moments,
            specs=self.specs,
            layout=self.master_layout,
            sizes=self.plan.axes,
            fraction=self.fraction,
        )

    def _evaluate(self, master: Tree, batch: Batch) -> tuple[Float[Array, ""], Float[Array, ""]]:
        stages = self.stages(train=False)
        weights = self.stored_weights(master)
        sinks = self.sinks(weights)

        program = forward_program(self.plan, self.plan.microbatches)
        loss = lambda x, microbatch: stages.loss(weights, sinks, x, microbatch)[1]
        total = evaluate(program, stages, weights, batch, loss)
        return self._sum(total), reduce_sum(batch["mask"].sum(), TOKEN_AXES)

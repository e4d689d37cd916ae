"""A run as an object that takes one step at a time; `Trainer` adds the loop to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax

from jaxpar.checkpoint.facts import CAME_FROM
from jaxpar.config import Config, UserError
from jaxpar.config.parts import OBJECTIVES
from jaxpar.config.plan import Plan
from jaxpar.config.ramp import examples_before, stretch_of, stretches
from jaxpar.data import batch_index
from jaxpar.distributed import liveness
from jaxpar.distributed.devices import Device
from jaxpar.layout.state import TrainState
from jaxpar.mesh.parameters import Weights, merge
from jaxpar.model.flops import Pairs
from jaxpar.observe.events import Listener
from jaxpar.observe.holdings import name_arrays
from jaxpar.optim.optimizer import AVERAGE
from jaxpar.training.run.batch_sizes import SizedStep, smaller_steps
from jaxpar.training.run.batches import placed_batches, validation_metrics
from jaxpar.training.run.out_of_memory import explained
from jaxpar.training.run.reference import initial_state_from, provide_reference
from jaxpar.training.run.setup import RunSetup
from jaxpar.training.run_folder.other_run import state_of_other_run
from jaxpar.training.step.forward_backward import StepMetrics


class Run(RunSetup):
    """A run that takes one step at a time; see `RunSetup` for its arguments and errors.

    Weights are made, and the step compiled, when they are first used. It writes no files.
    """

    def __init__(
        self,
        config: Config | str | Path,
        *,
        overrides: Sequence[str] = (),
        devices: Sequence[Device] | None = None,
        plan: Plan | None = None,
    ):
        super().__init__(config, overrides=overrides, devices=devices, plan=plan)
        self.left_out: tuple[int, ...] = ()
        """Numbers of batches that no step uses, ascending (`watch.on_spike`)."""
        self.check_epochs()
        self._state: TrainState | None = None
        if not self.config.run.init_optimizer:
            self._smaller  # noqa: B018 (sizes that cannot be are refused)
        self._frozen: Weights = {}
        """The frozen weights of a state that was dropped."""
        self.came_from: tuple[str, ...] = ()
        """The models from which this run came, through stages, the nearest first; those of a checkpoint are its own."""
        self.taken_over = ""
        """Sentences about the state of another run with which this one begins; empty where it takes none over."""
        self._continued: Mapping[str, object] = {}
        """The facts of the checkpoint that this run continues from."""
        self._batches: Iterator[tuple[dict[str, jax.Array], Pairs]] | None = None
        self.last_pairs: Pairs = {}
        """(query, key) pairs that the mask keeps in the last step's batch, over all rows, by window."""
        self.last_metrics: dict[str, float] = {}
        """Metrics of the last step's batch, where the batch itself has some."""
        self.samples: Sequence[tuple[str, str]] = ()
        """Prompts of the last evaluation with what continues them, where it draws answers."""
        self.stops: Callable[[], bool] = lambda: False
        """Whether to stop after this step, for one that waits: all processes ask equally often."""
        name_arrays(self, Run._arrays)
        liveness.report_activity("ready to train")

    @property
    def state(self) -> TrainState:
        """The current state; made from `run.init_from` or the seed when nothing was restored."""
        if self._state is None and self.config.run.init_optimizer:
            self.take_over(print)
        if self._state is None:
            self._state = self.functions.residency.initial_state()
            if (source := self.models.first) is not None:
                self._state = initial_state_from(source, self._state, self.functions.residency)
        return self._state

    def take_over(self, report: Callable[[str], None]) -> None:
        """Begin with the state of the run at `run.init_from`, as `run.init_optimizer` asks."""
        other = state_of_other_run(self.config, self.data.facts, self.saved.abstract, self.layout.carried, report)
        self.state, self.taken_over = self.saved.incoming(other.state), other.text
        if other.facts is not None:
            self.left_out = tuple(other.facts["left_out"])
            self.taken_over = " ".join(filter(None, (other.text, self.continue_data(other.facts))))

    @state.setter
    def state(self, state: TrainState) -> None:
        if self.layout.frozen and not state.frozen:  # a checkpoint has none
            state = state._replace(frozen=self._frozen or self.models.frozen(self.mesh))
        self._state, self._batches = self.functions.residency.adopted(state), None

    def provide_reference(
        self, listeners: Listener | None = None, saved: tuple[int, Mapping[str, Any]] | None = None
    ) -> None:
        """Compute the log-probabilities of the reference, or read them; they are stored beside the tokens. Those of a
        teacher are in the run's folder.

        Rows of pairs need them. To call this before there is a state leaves more memory for the reference.

        Args:
            listeners: are told of the progress.
            saved: the step and the facts of the checkpoint that this run continues from next, if it does.
        """
        if OBJECTIVES[self.config.loss.name].teacher:
            data, step, left_out = self.data, self.steps_done, self.left_out
            if saved is not None:
                step, left_out = saved[0], tuple(saved[1]["left_out"])
                data = data.continued(saved[1], self._first_example(step, left_out))
            self.models.check_reference(self._continued)
            # Batches are placed one ahead.
            first, last = (self._first_example(one, left_out) for one in (step, self.config.run.steps + 2))
            last = last if data.examples is None else min(last, data.examples)
            validation = self.config.evaluation.batches * self.config.data.batch_size if self.evaluates else 0
            self._teacher_pass.provide(data, left_out, range(first, last), validation, listeners or Listener())
        elif self.models.reference is not None and any(part.rows.reference.values is None for part in self.data.paired):
            self.models.check_reference(self._continued)
            liveness.report_activity("computing log-probabilities of the reference")
            provide_reference(
                self.config, self.data, self.models.reference, list(self.mesh.devices.flat), listeners or Listener()
            )

    def drop_state(self) -> None:
        """Free the state's memory, before another one is restored in its place; frozen weights stay."""
        self._frozen = {} if self._state is None else self._state.frozen
        self._state = self._batches = None

    @property
    def steps_done(self) -> int:
        """Steps taken so far, those before a restore included."""
        return 0 if self._state is None else int(self._state.step)

    def step(self) -> StepMetrics:
        """Take one step; returns before the devices are done (reading a metric waits for them)."""
        compiled = self.compiled
        with explained(self.layout, self.mesh, self.needed):
            return self._step(compiled, self.state)

    def _step(self, compiled: jax.stages.Compiled, state: TrainState) -> StepMetrics:
        if self._batches is None:
            self.provide_reference()
            first = int(state.step)
            self._batches = self.batches_from(first)
        with self.fetching():
            batch, self.last_pairs = next(self._batches)
        with self.timer.step():
            if self._smaller:
                microbatches, rows = batch["labels"].shape[:2]
                smaller = self._smaller.get(microbatches * rows)
                compiled = compiled if smaller is None else smaller.compiled
            self._state, metrics = self.functions.residency.advance(compiled, state, batch, self.functions.arguments)
        return metrics

    @cached_property
    def _smaller(self) -> dict[int, SizedStep]:
        """Steps of the smaller batches of `data.batch_ramp` that are to come, by their rows."""
        return smaller_steps(self.config, self.plan, self.mesh, batch_index(self.steps_done, self.left_out))

    def compile_smaller(self) -> None:
        """Compile the steps of the smaller batches that are still to come."""
        batch = batch_index(self.steps_done, self.left_out)
        with self.timer.compiling():
            for one, following in pairwise(stretches(self.config.data)):
                if following.batch > batch:
                    self._smaller[one.rows].compiled  # noqa: B018 (compiles now)

    def fetching(self) -> AbstractContextManager[None]:
        """Times the block that waits for the next batch."""
        return self.timer.fetching()

    def batches_from(self, first: int) -> Iterator[tuple[dict[str, jax.Array], Pairs]]:
        """The batches of the steps after `first`, on the devices, with the pairs that the mask keeps in them."""
        placers = {size: one.placer for size, one in self._smaller.items()}
        placers[self.config.data.batch_size] = self.placer
        return placed_batches(self.config, self.data, placers, first, self.left_out)

    def evaluate(self) -> float:
        """The loss over the validation batches, always the same ones: in nats per token, or per pair.

        Raises `UserError` when there are no validation batches, or no target of the loss in them.
        """
        if self.data.validation is None:
            raise UserError("data.validation_path is null: expected validation data to evaluate on")
        if not self.config.evaluation.batches:
            raise UserError("evaluation.batches: 0 leaves nothing to evaluate; expected at least 1")
        metrics = self.evaluation()
        if "loss" not in metrics:
            raise UserError("evaluation: nothing of the validation data has a loss; expected a reward for an answer")
        return metrics["loss"]

    def evaluation(self) -> dict[str, float]:
        """`evaluate` as `loss`, where there is one, and the metrics of the loss over the same batches, of a run that
        `evaluates`."""
        self.provide_reference()
        return validation_metrics(self.config, self.functions, self.evaluated_weights(), self.data, self.placer)

    def evaluated_weights(self) -> Weights:
        """Weights that are evaluated and sampled from: the weights, or their moving average under `evaluation.ema`.

        An average on disk is read with each call: once for a whole evaluation or sample.
        """
        return self.current_weights(average=self.config.evaluation.ema)

    def current_weights(self, *, average: bool = False) -> Weights:
        """All weights as they are now, or the moving average of the trained ones."""
        trained = self.functions.residency.readable(self.state.optimizer[AVERAGE] if average else self.state.master)
        return merge(self.state.frozen, trained)

    def check_epochs(self) -> None:
        """Refuse more steps than `data.max_epochs` leaves rows for."""
        if self.lacks_rows(self.left_out):
            raise UserError(
                f"data.max_epochs: the folders have {self.data.examples} rows in all, and run.steps "
                f"({self.config.run.steps}) needs {self._first_example(self.config.run.steps)}; expected fewer steps, "
                "more epochs or more data"
            )

    def lacks_rows(self, left_out: Sequence[int]) -> bool:
        """Whether `data.max_epochs` leaves too few rows for all steps, once these batches are left out."""
        rows = self.data.examples
        return rows is not None and self._first_example(self.config.run.steps, left_out) > rows

    def epochs(self, steps: int) -> dict[str, float]:
        """Epochs of each source after `steps` steps; empty if text is generated."""
        return self.data.train.epochs(self._first_example(steps))

    def continue_from(self, saved: TrainState, facts: Mapping[str, Any]) -> str | None:
        """Continue from a state in the form of a checkpoint; returns a message about the data, if any.

        Args:
            saved: laid out as `saved.abstract`.
            facts: those of the checkpoint.
        """
        self.models.check_base(facts)
        self._continued = facts
        self.state = self.saved.incoming(saved)
        self.came_from = tuple(facts.get(CAME_FROM, ()))
        self.left_out = tuple(facts.get("left_out", ()))
        return self.continue_data(facts)

    def brief(self) -> list[tuple[str, str]]:
        """(name, words) that this kind of run adds to its plan at the start."""
        return []

    def facts(self) -> dict[str, object]:
        """Facts of a checkpoint of this moment that this kind of run adds; bytes are files of their own."""
        return {}

    def close(self) -> None:
        """End the threads and processes that this kind of run has beside its steps; a later step begins others."""

    def continue_data(self, facts: Mapping[str, object]) -> str | None:
        """Continue the data from where a checkpoint of the current step was; returns a message about it, if any.

        Args:
            facts: those of the checkpoint, with `Data.facts` of the run that made it among them.
        """
        example = self.next_example
        self.data, self._batches = self.data.continued(facts, example), None
        self.check_epochs()
        if facts.get("mixture") in (None, self.data.facts["mixture"]):
            return None
        return (
            f"The mixture changes from example {example} on, and each source continues where it was: epochs "
            f"{self.data.epochs_text(example)}."
        )

    @property
    def next_example(self) -> int:
        """Number of the first example of the next step's batch."""
        return self._first_example(self.steps_done)

    def _first_example(self, step: int, left_out: Sequence[int] | None = None) -> int:
        """Number of the first example of a step's batch, by default with those that this run leaves out."""
        return examples_before(self.config.data, batch_index(step, self.left_out if left_out is None else left_out))

    def tokens(self, last: int, steps: int) -> int:
        """Tokens in the rows of `steps` steps, the last of them step `last`."""
        numbers = (batch_index(step, self.left_out) for step in range(last - steps, last))
        return sum(stretch_of(self.config.data, one).rows for one in numbers) * self.config.data.sequence_length

    def _arrays(self) -> dict[str, object]:
        """The arrays of this run, by purpose; arrays that do not exist yet are not made."""
        shapes = {(leaf.shape, leaf.dtype) for leaf in self.layout.abstract_batch().values()}
        named: dict[str, object] = {"batches": [a for a in jax.live_arrays() if (a.shape, a.dtype) in shapes]}
        if self._state is None:
            return named
        return named | self.functions.residency.arrays(self._state)

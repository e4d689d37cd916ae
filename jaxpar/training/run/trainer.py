"""A run as an object: `Trainer(config)` with `.step()`, `.evaluate()`, `.fit()`, `.save()`, `.generate()` and more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

import jax

from jaxpar.config import Config, UserError, load_config
from jaxpar.config.parts import DATA_SOURCES, ISLAND_RUN, implementation
from jaxpar.config.plan import Plan
from jaxpar.config.user_code import refuse_stored_code
from jaxpar.data import Data
from jaxpar.distributed.devices import Device
from jaxpar.generation.sampling import Sampling
from jaxpar.layout.state import TrainState
from jaxpar.observe.events import Listener, Summary
from jaxpar.observe.writers.default import default_listeners
from jaxpar.training.named_weights import NamedWeights
from jaxpar.training.run.attention_maps import attention_weights
from jaxpar.training.run.continuing import Generated, Prompt, check_stop, continued, encoded
from jaxpar.training.run.loop import fit
from jaxpar.training.run.plan_table import plan_rows
from jaxpar.training.run.progress import Progress
from jaxpar.training.run.run import Run
from jaxpar.training.run.saving import config_of_checkpoint, folder_of_run, restore, save_now
from jaxpar.training.run_folder.other_run import find_checkpoint
from jaxpar.training.step.forward_backward import StepMetrics

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float, Int


class Trainer:
    """A run of one configuration, for programs and notebooks.

    Making one checks the configuration, opens the data and lays out the mesh; weights are made, and the step compiled,
    when they are first used. Only `fit` and `save` write files, into `<run.dir>/<run.name>`.

    Args:
        config: a `Config`, or the path of a YAML file.
        overrides: `section.key=value`, as on the command line, where `config` is a path.
        devices: the devices of the mesh; by default all there are.
        plan: the layout, which is used as it is; by default it is made from the configuration for the devices.

    Raises:
        UserError: one sentence about what is wrong with the configuration or the data, or that the plan is of another
            configuration or cannot run on the devices.

    Methods:
        from_checkpoint(path): a trainer that goes on from a checkpoint.
        step(): take one step; returns its metrics.
        evaluate(), baseline(): the validation loss, and that of a bigram model.
        fit(): train to `run.steps`, with all files of a run.
        save(): write a checkpoint.
        generate(prompts): continue texts.
        weights(): the weights by name, in NumPy.
        attention_weights(tokens, layer): what each head attends to.
        plan_rows(): the plan as a table.

    Attributes:
        config: the configuration, with every value resolved.
        plan: how the run is laid out.
        mesh: the mesh of devices.
        data: the opened data.
        state: weights and optimizer state, sharded over the mesh.
        steps_done: steps taken so far, those before a restore included.
    """

    _make_run: ClassVar[type[Run] | None] = None
    """The class of the run; None is that of the data's source."""

    def __init__(
        self,
        config: Config | str | Path,
        *,
        overrides: Sequence[str] = (),
        devices: Sequence[Device] | None = None,
        plan: Plan | None = None,
    ):
        if not isinstance(config, Config):
            config, overrides = load_config(str(config), overrides), ()
        run = DATA_SOURCES[config.data.source].run if config.islands.folder is None else ISLAND_RUN
        make_run = self._make_run or implementation(run)
        self._run = make_run(config, overrides=overrides, devices=devices, plan=plan)
        self._progress = Progress()
        self._uncounted: list[StepMetrics] = []
        """Metrics of steps that `_progress` does not have yet: reading them would wait for the devices."""

    @property
    def config(self) -> Config:
        """The configuration, with every value resolved."""
        return self._run.config

    @property
    def plan(self) -> Plan:
        """Layout of the run."""
        return self._run.plan

    @property
    def mesh(self) -> jax.sharding.Mesh:
        """The mesh of devices."""
        return self._run.mesh

    @property
    def data(self) -> Data:
        """The opened data: `data.description`, `data.encode_start(text)`, `data.decode(tokens)`."""
        return self._run.data

    @property
    def state(self) -> TrainState:
        """Weights and optimizer state, sharded over the mesh; made from `run.init_from` or the seed at first use."""
        return self._run.state

    @property
    def steps_done(self) -> int:
        """Steps taken so far, those before a restore included."""
        return self._run.steps_done

    @classmethod
    def from_checkpoint(
        cls,
        path: str | Path,
        *,
        overrides: Sequence[str] = (),
        devices: Sequence[Device] | None = None,
        plan: Plan | None = None,
    ) -> Self:
        """The run that saved a checkpoint, as it was then: weights, optimizer state, steps taken, place in its data.

        Its configuration comes from the checkpoint. `step` goes on from there; `fit` continues the run in its folder,
        from the newest checkpoint.

        Args:
            path: the folder of a run, whose newest checkpoint it is; or of a checkpoint.
            overrides: `section.key=value` of what may change in a run, such as `parallel` and `evaluation`.
            devices: as for `Trainer`.
            plan: as for `Trainer`.

        Raises:
            UserError: there is no checkpoint of a run, or the overrides make another run of it.
            CheckpointError: it is damaged.
        """
        checkpoints, step = find_checkpoint(path)
        config = config_of_checkpoint(checkpoints, step, overrides)
        refuse_stored_code(config, overrides, f"the checkpoint {checkpoints!s}")
        config = replace(config, run=replace(config.run, **folder_of_run(checkpoints, config)))
        trainer = cls(config, devices=devices, plan=plan)
        trainer._progress.restore(restore(trainer._run, checkpoints, step))
        return trainer

    def step(self) -> StepMetrics:
        """Take one step; returns its metrics before the devices are done (reading one waits for them)."""
        metrics = self._run.step()
        self._progress.dispatched(self._run.last_pairs, self._run.last_metrics)
        self._uncounted.append(metrics)
        return metrics

    def evaluate(self) -> float:
        """The loss over the validation batches, always the same ones: in nats per token, or per pair.

        Raises:
            UserError: the data source has no validation data, or nothing that the loss counts.
        """
        return self._run.evaluate()

    def baseline(self) -> float | None:
        """Loss of a bigram model on the validation batches, in nats per token; None where there are none, or pairs."""
        return self._run.baseline()

    def fit(self, listeners: Iterable[Listener] | None = None) -> Summary:
        """Train to `run.steps`, evaluating and saving on the way; continues a run that its folder holds.

        Where the folder has a checkpoint, the newest one is restored: later steps taken with `step` and not saved are
        discarded, which a message says.

        Args:
            listeners: what is notified of the run; by default the screen and the files of the run's folder.

        Raises:
            UserError: the folder belongs to another run, or cannot be written.
            TrainingError: the run had to stop.
        """
        progress = self._counted()
        return fit(self._run, default_listeners(self.config) if listeners is None else listeners, progress)

    def save(self) -> Path:
        """Save a checkpoint of the state as it is now in the run's folder; returns the checkpoint's folder.

        `fit` and `Trainer.from_checkpoint` continue from it. It is complete when this returns. With several processes
        all of them must call it.

        Raises:
            UserError: no step was taken, or the folder has a checkpoint of this step or a later one, belongs to
                another run, is in use, or cannot be written.
            CheckpointError: the checkpoint cannot be written.
        """
        skipped_in_row = int(self._uncounted[-1].skipped_in_row) if self._uncounted else 0
        return save_now(self._run, self._counted(), skipped_in_row)

    def _counted(self) -> Progress:
        """The counters of all steps so far."""
        for metrics in self._uncounted:
            if metrics.tokens:  # a step without a counted token has no loss
                self._progress.loss = float(metrics.loss)
            self._progress.counted(float(metrics.tokens), finite=bool(metrics.finite))
        self._uncounted = []
        return self._progress

    def weights(self) -> NamedWeights:
        """The weights as they are now, by name: `trainer.weights()["layers.all.mlp.up"]` is [layers, embed, mlp].

        With `evaluation.ema` these are their moving average. docs/python.md lists names and shapes.
        """
        return NamedWeights(self._run.evaluated_weights(), self._run.layout)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        tokens: int = 128,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        stop: Sequence[str] = (),
        special_tokens: bool = False,
        seed: int = 1,
    ) -> list[Generated]:
        """Continue prompts with the weights as they are now, on the run's own mesh, as `python -m jaxpar.generate`.

        Under a pipeline the devices of the pipe axis join those of fsdp, since one stage would wait for the other at
        every token. Each call copies the weights into the dtype of matmuls, and compiles its programs.

        Args:
            prompts: a text, token ids, or several of either, which are continued together. Token ids are taken as they
                are; a text begins with the tokens that the tokenizer puts before it.
            tokens: the most new tokens of each.
            temperature: 0 takes the likeliest token, and then the next four do nothing.
            top_k: only the likeliest k tokens; 0 for all.
            top_p: only the likeliest tokens whose probabilities add up to p.
            min_p: only tokens at least this many times as likely as the likeliest.
            repetition_penalty: above 1 it repeats less.
            stop: texts that end a continuation before them.
            special_tokens: the names of special tokens in a text are those tokens.
            seed: of the draws.

        Raises:
            UserError: a prompt is empty or has an unknown token, or an argument is out of range.
        """
        if tokens < 1:
            raise UserError(f"tokens: expected at least 1, got {tokens}")
        check_stop(self._run, stop)
        sampling = Sampling(temperature, repetition_penalty, top_k, top_p, min_p)
        rows = encoded(self._run, prompts, special_tokens)
        return continued(self._run, rows, tokens, sampling, seed, stop)

    def attention_weights(self, tokens: Int[np.ndarray, " seq"], layer: int) -> Float[np.ndarray, "heads query key"]:
        """The attention weights of each head of `layer` for one document, with the weights as they are now.

        Row q of a head sums to 1 over the tokens that q may see; all others are 0. The model must fit on one device.

        Args:
            tokens: at most `data.sequence_length`.
            layer: number of the layer, from 0.

        Raises:
            UserError: there is no such layer, the text is empty or longer than a row, or there are several processes.
        """
        return attention_weights(self._run, tokens, layer)

    def plan_rows(self) -> list[tuple[str, str, str]]:
        """(name, value, reason) of every decision of the plan."""
        return plan_rows(self._run.layout, self.mesh, self.data.description)

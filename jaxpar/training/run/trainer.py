"""A run as an object: `Trainer(config)` with `.step()`, `.evaluate()`, `.fit()`, `.generate()` and `.weights()`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from jaxpar.config import UserError
from jaxpar.config.plan import Plan
from jaxpar.distributed.devices import Device
from jaxpar.generation.sampling import Sampling
from jaxpar.observe.events import Listener, Summary
from jaxpar.training.run.continuing import Generated, Prompt, check_stop, continued, encoded, generator_of
from jaxpar.training.run.listeners import default_listeners
from jaxpar.training.run.loop import fit
from jaxpar.training.run.named_weights import NamedWeights
from jaxpar.training.run.out_of_memory import explained
from jaxpar.training.run.restored import config_of_checkpoint, find_checkpoint, folder_of_run, restore
from jaxpar.training.run.run import Run


class Trainer(Run):
    """A run with its training loop. Only `fit` writes files."""

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
        config = replace(config, run=replace(config.run, **folder_of_run(checkpoints, config)))
        trainer = cls(config, devices=devices, plan=plan)
        restore(trainer, checkpoints, step)
        return trainer

    def fit(self, listeners: Iterable[Listener] | None = None) -> Summary:
        """Train to `run.steps`, evaluating and saving on the way; continues a run that its folder holds.

        Args:
            listeners: what is notified of the run; by default the screen and the files of the run's folder.

        Raises:
            UserError: the folder belongs to another run, or cannot be written.
            TrainingError: the run had to stop.
        """
        # Steps run asynchronously: an out-of-memory error may be raised wherever a result is waited for.
        with explained(self.layout, self.mesh, self.needed):
            return fit(self, default_listeners(self.config) if listeners is None else listeners)

    def weights(self) -> NamedWeights:
        """The weights as they are now, by name: `trainer.weights()["layers.mlp.up"]` is [layers, embed, mlp] in NumPy.

        With `evaluation.ema` these are their moving average. docs/models.md lists names and shapes.
        """
        return NamedWeights(self.evaluated_weights(), self.layout)

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
            tokens: at most so many new ones for each.
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
        check_stop(self, stop)
        sampling = Sampling(temperature, repetition_penalty, top_k, top_p, min_p)
        rows = encoded(self, prompts, special_tokens)
        return continued(self, generator_of(self, sampling, seed), rows, tokens, stop)

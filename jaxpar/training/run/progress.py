"""Sums over the steps of a run: tokens, losses and model FLOPs, and the record of a logged step."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from jaxpar.config.counting import Reach
from jaxpar.config.strict_json import strict_json
from jaxpar.model.flops import Pairs, mfu
from jaxpar.observe.events import StepRecord
from jaxpar.observe.memory import bytes_in_use, limit_bytes, memory_kind, peak_bytes
from jaxpar.observe.timer import Lap
from jaxpar.training.run.run import Run
from jaxpar.training.step.forward_backward import StepMetrics


class Progress:
    """The counters of a run, which continue from a checkpoint."""

    def __init__(self) -> None:
        self.tokens, self.skipped, self.empty = 0, 0, 0
        self.loss: float | None = None
        """Training loss of the last logged step that has one."""
        self._evaluated: tuple[int, float] | None = None
        """Step and validation loss of the last evaluation."""
        self._validation_metrics: dict[str, float] = {}
        """The loss's other metrics in that evaluation."""
        self._start_lap()

    def _start_lap(self) -> None:
        self._under_way: deque[tuple[Pairs, Mapping[str, float]]] = deque()
        """Pairs and metrics of the batch of each step that was dispatched and not yet counted."""
        self._batch_metrics: Mapping[str, float] = {}
        """Metrics of the batch of the last step that was counted."""
        self._pairs: Counter[Reach] = Counter()
        """Pairs of the steps since the last record."""

    def facts(self) -> dict[str, object]:
        """State that a checkpoint saves for `restore`."""
        step, loss = self._evaluated or (None, None)
        facts = {"tokens": self.tokens, "skipped": self.skipped, "empty": self.empty, "loss": self.loss}
        return strict_json({**facts, "eval_step": step, "eval_loss": loss})

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Continue from the facts of a checkpoint."""
        self._start_lap()
        self.tokens, self.skipped, self.empty = facts["tokens"], facts["skipped"], facts["empty"]
        self.loss, step, loss = facts["loss"], facts["eval_step"], facts["eval_loss"]
        self._evaluated = None if step is None or loss is None else (step, loss)

    def dispatched(self, pairs: Pairs, metrics: Mapping[str, float]) -> None:
        """A step was dispatched, in whose batch the mask keeps `pairs`; `metrics` are of the batch."""
        self._under_way.append((pairs, metrics))

    def counted(self, tokens: float, *, finite: bool) -> None:
        """Record that the earliest dispatched step is done: its unmasked tokens, and whether it was `finite` or
        skipped.

        Without finite numbers in the batch `tokens` may not be finite either.
        """
        pairs, self._batch_metrics = self._under_way.popleft()
        self._pairs.update(pairs)
        if not finite:
            self.skipped += 1
        elif tokens:
            self.tokens += int(tokens)
        else:
            self.empty += 1

    def evaluated(self, step: int, loss: float, metrics: Mapping[str, float]) -> None:
        """Validation data was evaluated after `step`."""
        self._evaluated, self._validation_metrics = (step, loss), dict(metrics)

    def validation_loss(self, step: int) -> float | None:
        """The validation loss after `step`; None where that step was not evaluated."""
        return self._evaluated[1] if self._evaluated is not None and self._evaluated[0] == step else None

    def record(self, trainer: Run, step: int, metrics: StepMetrics, lap: Lap, data_wait: float) -> StepRecord:
        """The record of step `step`, and of the steps of `lap`, which ends with it."""
        config, seconds = trainer.config, lap.step_seconds
        tokens = trainer.tokens(step, lap.steps)
        devices, flops = trainer.plan.axes.devices, trainer.flops(tokens, self._pairs)
        share = lambda peak: None if peak is None else mfu(flops, lap.seconds, devices, peak)
        self._pairs.clear()
        reported = {name: float(value) for name, value in metrics.report.items()}
        loss = float(metrics.loss) if float(metrics.tokens) else None
        self.loss = self.loss if loss is None else loss
        matrix_rate = metrics.matrix_learning_rate
        return StepRecord(
            step=step,
            loss=loss,
            grad_norm=float(metrics.grad_norm),
            learning_rate=float(metrics.learning_rate),
            matrix_learning_rate=None if matrix_rate is None else float(matrix_rate),
            tokens_per_second=tokens / lap.seconds,
            tokens_per_second_per_device=tokens / lap.seconds / devices,
            step_time_s=seconds,
            mfu=share(trainer.peak_flops),
            memory_bytes=bytes_in_use(),
            eta_s=(config.run.steps - step) * seconds,
            skipped_steps=self.skipped,
            empty_steps=self.empty,
            loss_scale=float(metrics.loss_scale) if config.precision.compute == "float16" else None,
            eval_loss=self.validation_loss(step),
            memory_kind=memory_kind(),
            memory_peak_bytes=peak_bytes(),
            memory_limit_bytes=limit_bytes(),
            epochs=trainer.epochs(step),
            blocks=block_means(reported) or None,
            features=_feature_values(trainer, metrics) | layer_means(reported) or None,
            data_wait=data_wait,
            metrics=self._metrics(trainer, step, reported, empty=loss is None) or None,
        )

    def _metrics(self, trainer: Run, step: int, reported: Mapping[str, float], *, empty: bool) -> dict[str, float]:
        """Reports of layers and loss at step `step`, and of the loss on validation data."""
        values = {name: value for name, value in reported.items() if "." not in name}
        values |= {**self._batch_metrics, **({} if empty else trainer.layout.objective.derived(reported))}
        if empty:  # The loss has no metrics then.
            values = {name: value for name, value in values.items() if not math.isnan(value)}
        if self.validation_loss(step) is None:
            return values
        return values | {f"eval_{name}": value for name, value in self._validation_metrics.items()}


def _feature_values(trainer: Run, metrics: StepMetrics) -> dict[str, object]:
    """The values that features with carried state record of a step, by name."""
    each = (trainer.layout.carried[name].record(value) for name, value in metrics.carried.items())
    return {name: value for values in each for name, value in values.items()}


def block_means(report: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """The values `<block>.<value>` of each block that some layer has, averaged over tokens and layers.

    Args:
        report: The sums of a step, divided by the number of tokens.
    """
    values: dict[str, dict[str, float]] = {}
    for name, value in report.items():
        block, _, rest = name.partition(".")
        if rest and "." not in rest:
            values.setdefault(block, {})[rest] = value
    return {
        block: {name: value / tokens for name, value in reported.items()}
        for block, reported in values.items()
        if (tokens := reported.pop("tokens", 0.0))
    }


def layer_means(report: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """The values of single layers: `<block>_<value>` to the layer's index to the mean over tokens; zeros, which layers
    without the block report, are left out."""
    means: dict[str, dict[str, float]] = {}
    for name, value in report.items():
        of_layer, _, layer = name.rpartition(".")
        if "." in of_layer and value:
            means.setdefault(of_layer.replace(".", "_"), {})[layer] = value
    return means

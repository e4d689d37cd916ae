"""The learning-rate finder: a short run whose rate rises exponentially, and what its losses show (the range test of
Smith 2015, arXiv:1506.01186, section 3.3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from jaxpar.config import Config, UserError
from jaxpar.config.bounds import COUNT
from jaxpar.config.parts import OBJECTIVES, OPTIMIZERS
from jaxpar.config.schema import OptimizerConfig
from jaxpar.layout.step_arguments import StepArguments
from jaxpar.pages.units import plural
from jaxpar.training.run.run import Run

FEWEST_STEPS = 20
FIRST = 5
"""Losses whose mean is the starting loss; a sweep whose last ones are well above it has diverged."""
ROSE = 0.05
"""Margin above the start: while the rate is too low to matter, losses are as often above the start as below it."""
SMOOTHING = 1 / 40
"""Standard deviation of the smoothing, as a share of the sweep's steps."""
FELL = 0.02
"""A loss that fell by less than this share gives no result."""

type Progress = Callable[[int, float, float], None]
"""Called after each step that has a loss, with its number from 1 among these, its rate and its loss."""


@dataclass(frozen=True)
class Suggestion:
    """A learning rate, and why."""

    rate: float
    """The rate at which the loss fell fastest per factor in the rate."""
    lowest: float
    """Rate at which the loss was lowest."""
    settings: dict[str, float]
    """The keys of the configuration to set."""
    reason: str


@dataclass(frozen=True)
class Sweep:
    """Measurements of a sweep."""

    rates: list[float]
    """`optimizer.learning_rate` of each step; `matrix_learning_rate`, where used, keeps its proportion to it."""
    losses: list[float]
    """Loss of each step in nats per token, before its update."""
    smooth: list[float]
    """The losses without their noise: weighted means over neighbouring steps."""
    ended: str
    """The reason why the sweep ended."""
    suggestion: Suggestion | None
    """None where the losses do not suffice for one; `ended` then has the reason."""

    def to_json(self) -> dict[str, object]:
        """All of it as JSON values."""
        return asdict(self)


def sweep_rates(config: Config, *, low: float, high: float, steps: int, progress: Progress) -> Sweep:
    """Train from the initial weights for `steps` steps while the rate rises from `low` to `high`; writes nothing.

    It ends early once the loss is not finite, or well above where it began.

    Raises:
        UserError: the bounds do not make a sweep, the configuration cannot be run, or no step has a loss.
    """
    if not 0 < low < high < math.inf:
        raise UserError(f"--low and --high: expected 0 < low < high, got {low:g} and {high:g}")
    if steps < FEWEST_STEPS:
        raise UserError(f"--steps: expected at least {FEWEST_STEPS}, got {steps}")
    if steps > COUNT:
        raise UserError(f"--steps: expected at most {COUNT}, got {steps}")
    if OBJECTIVES[config.loss.name].rewards:
        raise UserError(
            f"loss.name: {config.loss.name} has no loss that falls as it learns; expected a loss of tokens or of pairs"
        )
    trainer = Run(_swept(config, high))
    functions, peak = trainer.functions, trainer.layout.arguments
    rates, losses, ended = [], [], f"it took all its {steps} steps"
    for _ in range(steps):
        functions.arguments = functions.placed(_scaled(peak, (low / high) ** (1 - len(losses) / (steps - 1))))
        metrics = trainer.step()
        if not float(metrics.tokens):
            continue  # It has no loss, and the rate stays as it is.
        rates.append(float(metrics.learning_rate))
        losses.append(float(metrics.loss))
        progress(len(losses), rates[-1], losses[-1])
        if not bool(metrics.finite):
            ended = f"loss or gradient was not finite at a rate of {rates[-1]:.2g}"
            break
        if diverged(losses):
            ended = f"the loss was {ROSE:.0%} above where it began at a rate of {rates[-1]:.2g}"
            break
    if not losses:
        raise UserError(
            f"data.sequence_length={config.data.sequence_length}: no row of {plural(steps, 'batch')} has a token "
            "that the loss counts; expected longer rows, or other data"
        )
    return judge(rates, losses, ended, config)


def diverged(losses: Sequence[float]) -> bool:
    """Whether the last losses of a sweep are so far above its first ones that larger rates add nothing."""
    return len(losses) > 2 * FIRST and float(np.median(losses[-FIRST:])) > (1 + ROSE) * float(np.mean(losses[:FIRST]))


def judge(rates: Sequence[float], losses: Sequence[float], ended: str, config: Config) -> Sweep:
    """The result of a sweep from its losses. Non-finite losses, which come last, are left out."""
    finite = int(np.isfinite(losses).sum())
    rates, losses = list(rates[:finite]), list(losses[:finite])
    if finite < 2 * FIRST:
        return Sweep(rates, losses, losses, f"{ended}, after {plural(finite, 'step')}: lower --low", None)
    smooth = _smooth(np.array(losses), max(1.0, finite * SMOOTHING))
    lowest = int(smooth.argmin())
    if smooth[0] - smooth[lowest] < FELL * abs(smooth[0]):
        why = f"{ended}, and the loss did not fall by {FELL:.0%} at any rate: more --steps, or a larger --high"
        return Sweep(rates, losses, smooth.tolist(), why, None)
    slope = np.gradient(smooth, np.log(rates))
    steepest = int(slope[: lowest + 1].argmin())
    rate = float(f"{rates[steepest]:.1e}")
    reason = (
        f"the loss fell fastest there, on the way from {smooth[0]:.3f} to its lowest of {smooth[lowest]:.3f} at "
        f"{rates[lowest]:.2g}; a rate near the lowest point, behind which it rises, would leave no margin"
    )
    if lowest >= finite - 2:
        reason = (
            f"the loss fell fastest there, but it was still falling when the sweep ended, at {rates[-1]:.2g}: a "
            "larger --high may find a higher rate"
        )
    settings = {"optimizer.learning_rate": rate}
    if _has_matrix_rate(config.optimizer):
        matrix_rate = config.optimizer.matrix_learning_rate / config.optimizer.learning_rate * rate
        settings["optimizer.matrix_learning_rate"] = float(f"{matrix_rate:.1e}")
    return Sweep(rates, losses, smooth.tolist(), ended, Suggestion(rate, rates[lowest], settings, reason))


def _swept(config: Config, high: float) -> Config:
    """`config` with `high` as its peak, without what a sweep does not use."""
    optimizer = config.optimizer
    matrix_rate = optimizer.matrix_learning_rate
    if _has_matrix_rate(optimizer):
        if optimizer.learning_rate == 0:
            raise UserError(
                "optimizer.learning_rate: expected more than 0: matrix_learning_rate keeps its proportion to it"
            )
        matrix_rate *= high / optimizer.learning_rate
    rates = {"learning_rate": high, "matrix_learning_rate": matrix_rate}
    return replace(
        config,
        optimizer=replace(optimizer, schedule="constant", warmup_steps=0, ema=None, **rates),
        evaluation=replace(config.evaluation, ema=False),
    )


def _scaled(arguments: StepArguments, share: float) -> StepArguments:
    """`arguments` with a `share` of their learning rates."""
    return arguments._replace(optimizer=arguments.optimizer.scaled(share))


def _has_matrix_rate(optimizer: OptimizerConfig) -> bool:
    """Whether the layers' matrices have a learning rate of their own."""
    return OPTIMIZERS[optimizer.name].matrix_rate


def _smooth(losses: np.ndarray, width: float) -> np.ndarray:
    """Means of neighbouring losses, with Gaussian weights of standard deviation `width`."""
    steps = np.arange(len(losses))
    weights = np.exp(-0.5 * ((steps[:, None] - steps) / width) ** 2)
    return weights @ losses / weights.sum(axis=1)

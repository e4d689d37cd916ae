"""One combination of features on one mesh: drawn, compared with one device, and made smaller where it differs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import numpy as np

from jaxpar.config import Config
from jaxpar.config.errors import UserError
from jaxpar.data.masked import masked_data
from jaxpar.layers.experts.feed_forward import OVERFLOWS, RANK_LOAD
from jaxpar.layers.linear_attention import recurrence
from jaxpar.layout.make_plan import make_plan, resolve_config
from jaxpar.layout.step_layout import StepLayout
from jaxpar.memory import fraction
from jaxpar.mesh.parameters import merge
from jaxpar.optim.optimizer import AVERAGE
from tests.data.chat_files import VOCAB
from tests.data.preference_files import prepared_marked, prepared_pairs
from tests.fuzz.features import ANSWERS, FEATURES, OF_EXPERTS, ROUNDED, Sections
from tests.fuzz.wide import wide_numbers
from tests.rl.test_policy import answers_of, text_of, with_policies
from tests.short_documents import into_documents
from tests.small_run import SmallRun, layout_of, small
from tests.training.parity.test_distill import taught
from tests.training.parity.test_preferences import LENGTH, LOSSES, batch_of

type Numbers = dict[str, float]

STEPS, DEVICES = 3, 8
AXES = ("pipe", "replica", "fsdp", "expert", "context", "tensor")
TOLERANCE, OF_ROUNDED, OF_WIDE = 1e-5, {"loss": 1e-3, "norm": 5e-2}, 1e-9
"""Largest relative differences, as in `training/parity`: of `one_device.py`, of `test_bfloat16.py`; in 64 bits."""
ROUNDING = 1e-3
"""The largest relative difference in float32 that may be rounding."""
OUTCOMES = EQUAL, REFUSED, BY_PLAN, LATE, WRONG = "equal", "refused", "refused by the plan", "refused late", "wrong"
"""Refused by the checks of the configuration, by its plan, or by neither: the step was about to be built, or was."""
SIZES = ((fraction, "STAYS_BELOW", 1), (recurrence, "CHUNK", 4), (recurrence, "BLOCK", 2))
"""Small arrays are to be offloaded, and states cut into small chunks, as large models do with large ones."""


@dataclass(frozen=True)
class Case:
    """Features, by name, and keys of `parallel`."""

    features: tuple[str, ...]
    parallel: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return ", ".join((*self.features, *(f"{key}={value}" for key, value in self.parallel)))

    def config(self, *, alone: bool = False) -> Config:
        """The configuration; `alone` is that of the same numbers on one device."""
        features = [FEATURES[name] for name in self.features]
        routed = any(feature.group == "experts" for feature in features)
        same = ("islands", "microbatches") if routed else ("islands",)  # balance is that of a microbatch
        parallel = {key: value for key, value in self.parallel if key in same or not alone}
        sections: Sections = {"model": {"layers": 4}, "data": {"batch_size": 16}, "parallel": parallel}
        for feature in features:
            sections = _merged(sections, {} if alone and feature.layout else feature.sections)
        if (name := sections.get("loss", {}).get("name")) in ("dpo", *LOSSES):
            sections["data"] |= {"source": "tokens", "path": _answers(name), "sequence_length": LENGTH}
            sections["model"] |= {"vocab": VOCAB}
            sections["run"] = {"init_from": "not opened"} if name in ("dpo", "kto") else {}
        return small(**sections)

    def differences(self) -> list[str]:
        """Sentences on what differs from one device, or is not finite there. Raises `UserError` if it is refused.

        An update may make a large difference of a rounding, where a gradient is almost nothing. So float32 numbers
        that differ, by at most `ROUNDING`, are computed again in 64 bits, and count if those differ too.
        """
        bounds = OF_ROUNDED if any(FEATURES[name].group == ROUNDED for name in self.features) else TOLERANCE
        wanted, numbers = _numbers(self.config(alone=True)), _numbers(self.config())
        found = _differences(wanted, numbers, bounds)
        if found and bounds == TOLERANCE and not _differences(wanted, numbers, ROUNDING):
            try:
                with wide_numbers():
                    return _differences(_numbers(self.config(alone=True)), _numbers(self.config()), OF_WIDE)
            except (TypeError, ValueError) as error:  # an operation that mixes dtypes, say
                found.append(f"and no numbers in 64 bits: {error}")
        return found

    def refused(self) -> tuple[str, str]:
        """(`REFUSED` or `BY_PLAN`, the sentence) where its configuration or its plan is refused; two empty strings if
        both are accepted."""
        outcome = REFUSED
        try:
            for config in (self.config(alone=True), self.config()):
                outcome = REFUSED
                resolved = resolve_config(config, layout_of(config.parallel))
                outcome = BY_PLAN
                StepLayout(resolved, make_plan(resolved, jax.devices()[0]))
        except UserError as error:
            return outcome, str(error)
        return "", ""

    def outcome(self) -> tuple[str, str]:
        """One of `OUTCOMES`, and why: the sentence of a refusal, what differs from one device, or how it stopped."""
        try:
            if (refused := self.refused())[0]:
                return refused
            why = "; ".join(self.differences())
        except UserError as error:
            return LATE, str(error)
        except Exception as error:  # whatever it is, it is no sentence to a user
            return WRONG, f"{type(error).__name__}: {error}"
        return (WRONG, why) if why else (EQUAL, "")

    def smallest(self) -> "Case":
        """The same without any feature or axis that its failure does not need."""
        parts = [replace(self, features=tuple(one for one in self.features if one != name)) for name in self.features]
        parts += [replace(self, parallel=tuple(one for one in self.parallel if one != item)) for item in self.parallel]
        return next((part.smallest() for part in parts if part.outcome()[0] == WRONG), self)


def parse(text: str) -> Case:
    """The case that `str` wrote."""
    words = [word.strip() for word in text.split(",")]
    pairs = [word.split("=") for word in words if "=" in word]
    return Case(tuple(word for word in words if "=" not in word), tuple((key, int(value)) for key, value in pairs))


def draw(seed: int) -> Case:
    """Two features or three, of groups that go together, on a mesh that they are for."""
    rng = np.random.default_rng(seed)
    chosen: dict[str, str] = {}
    axes: dict[str, int] = {}
    count = int(rng.integers(2, 4))
    devices = lambda: prod(size for axis, size in axes.items() if axis != "microbatches")
    for name in map(str, rng.permutation(list(FEATURES))):
        group, needed = FEATURES[name].group, FEATURES[name].axes
        alone = group in chosen or (group in OF_EXPERTS and "experts" not in chosen)
        alone |= {group, *chosen} >= {ROUNDED, "experts"} or len(chosen) == count
        alone |= any(axes.get(axis, sizes[0]) not in sizes for axis, sizes in needed.items())
        least = prod(sizes[0] for axis, sizes in needed.items() if axis not in ("microbatches", *axes))
        if not alone and devices() * least <= DEVICES:
            chosen[group] = name
            for axis, sizes in needed.items():
                fitting = [size for size in sizes if devices() * size <= DEVICES] or sizes[:1]
                axes.setdefault(axis, int(rng.choice(fitting)))
    for axis in map(str, rng.permutation(AXES)):
        axes.setdefault(axis, min(int(rng.choice((1, 1, 2, 2, 4))), DEVICES // devices()))
    axes.setdefault("microbatches", int(rng.choice((2, 4) if axes["pipe"] > 1 else (1, 2, 4))))
    layout = {axis: size for axis, size in axes.items() if size > 1} | {"zero": int(rng.integers(4))}
    return Case(tuple(chosen.values()), tuple(layout.items()))


def _merged(first: Sections, second: Sections) -> Any:
    deeper = [key for key in first.keys() & second.keys() if isinstance(first[key], dict)]
    return first | second | {key: _merged(first[key], second[key]) for key in deeper}


def _differences(wanted: Sequence[Numbers], found: Sequence[Numbers], bounds: float | Mapping[str, float]) -> list[str]:
    return [
        f"{name} of step {step}: {same[name]} is not {of_step[name]}"
        for step, (of_step, same) in enumerate(zip(wanted, found, strict=True))
        for name, bound in (bounds if isinstance(bounds, Mapping) else dict.fromkeys(of_step, bounds)).items()
        if not (
            np.isfinite(of_step[name])
            and np.isclose(same[name], of_step[name], rtol=bound, atol=min(1e-7, bound / 100))
        )
    ]


@cache
def _folder() -> TemporaryDirectory[str]:
    """It is deleted when the process ends."""
    return TemporaryDirectory(prefix="fuzz-")


@cache
def _answers(loss: str) -> str:
    prepared = prepared_marked if loss == "kto" else prepared_pairs
    return str(prepared(Path(_folder().name) / loss).path)


def _numbers(config: Config) -> list[Numbers]:
    """Loss, norm of the gradient, the share of each weight in it, and reports of each step, but for those of the ranks
    that share experts; with the last, an evaluation."""
    with TemporaryDirectory() as folder:
        run = SmallRun(replace(config, run=replace(config.run, dir=folder)))
        state, found = run.step.residency.initial_state(), []
        if not config.model.causal:
            run.data = masked_data(run.config, run.data)
        for step in range(STEPS):
            batch = run.place(_batch(run, step))
            state, metrics = run.step.residency.advance(run.step.train, state, batch, run.step.arguments)
            numbers = {"loss": metrics.loss, "norm": metrics.grad_norm, "tokens": metrics.tokens, **metrics.report}
            for path, squares in jax.tree.leaves_with_path(metrics.squares):
                name = jax.tree_util.keystr(path, simple=True, separator=".")
                numbers[f"share of {name}"] = np.sqrt(np.sum(squares)) / metrics.grad_norm
            found.append({key: float(value) for key, value in numbers.items() if key not in (RANK_LOAD, OVERFLOWS)})
        weights = run.step.residency.readable(state.optimizer.get(AVERAGE, state.master))
        rows = run.place(_batch(run, STEPS), run.step.layout.evaluated)
        sums, count = run.step.evaluate(merge(state.frozen, weights), rows)
        found[-1] |= {f"evaluated {name}": float(total / count) for name, total in sums.items()}
    return found


def _batch(run: SmallRun, step: int) -> dict[str, np.ndarray]:
    """The rows of a step, in short documents with padding where they are plain tokens."""
    config, rng = run.config, np.random.default_rng(step)
    if config.loss.name in ("dpo", "kto"):
        return batch_of(run)
    if config.data.source == ANSWERS["source"]:
        rows = answers_of(rng, config.data.batch_size, config.data.sequence_length)
        drawn = with_policies(rows, -rng.uniform(1, 5, rows["mask"].shape), rng)
        return text_of(rng, *rows["mask"].shape) | {
            name: x.astype(np.float32) if x.dtype == np.float64 else x for name, x in drawn.items()
        }
    rows = run.rows(step)
    if config.loss.name not in ("cross_entropy", "distill"):
        return rows
    unchanged = {} if config.data.packed else {name: rows[name] for name in ("segments", "positions")}
    rows = into_documents(rows, seed=step) | unchanged
    return rows if config.loss.name == "cross_entropy" else rows | taught(rows["tokens"].shape, config.loss.top_k, rng)

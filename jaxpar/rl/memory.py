"""Memory that a run takes beside its steps: the model that draws answers, on the step's devices or others, and a
reference."""

from __future__ import annotations

from dataclasses import dataclass

from jaxpar.config import Config, UserError
from jaxpar.config.mappings.policy import policy_of
from jaxpar.config.mappings.sampler import SamplerConfig
from jaxpar.generation.joined_stages import ZERO, joined_mesh
from jaxpar.generation.layout import generation_layout
from jaxpar.generation.memory import GenerationBytes, generation_bytes, weight_bytes
from jaxpar.generation.placed_model import mesh_of
from jaxpar.layout.memory.device import memory_limit
from jaxpar.layout.memory.estimate import estimate_memory
from jaxpar.layout.step_layout import StepLayout
from jaxpar.pages.units import plural, size
from jaxpar.rl.answer_scores import reference_config
from jaxpar.rl.prompts import PromptRows
from jaxpar.rl.room import longest_prompt, positions_needed
from jaxpar.rl.sampling.sampler import Sampler
from jaxpar.training.run.continuing import config_of_generator
from jaxpar.training.run.run import Run


@dataclass(frozen=True)
class RolloutBytes:
    """Bytes on one device."""

    step: int
    """A step, by its estimate."""
    state: int
    """Master weights and moments, which stay between steps."""
    generation: GenerationBytes
    """The model that draws, with one copy of its weights."""
    copies: int
    """Copies of these weights while answers are drawn."""
    reference: int
    apart: bool
    """Whether the model that draws is on other devices."""

    @property
    def drawing(self) -> int:
        """On a device that draws, while it does."""
        drawn = self.copies * self.generation.weights + self.generation.drawing
        return drawn if self.apart else max(drawn, 2 * self.generation.weights) + self.state + self.reference

    @property
    def training(self) -> int:
        """On a device that trains, during a step."""
        return self.step + self.reference

    def words(self) -> str:
        """Returns the bytes of generation and of the step in words."""
        made = self.generation
        parts = {
            "state": 0 if self.apart else self.state, "weights": self.copies * made.weights,
            "cache": made.cache + made.prefixes, "logits": made.logits,
            "reference": 0 if self.apart else self.reference,
        }  # fmt: skip
        where = "each device that draws" if self.apart else "a device while they are drawn"
        listed = ", ".join(f"{name} {size(amount)}" for name, amount in parts.items() if amount)
        beside = f"; a reference of {size(self.reference)} beside each step" if self.reference else ""
        return f"about {size(self.drawing)} on {where}: {listed}{beside}"


def rollout_bytes(run: Run, sampler: Sampler) -> RolloutBytes:
    """The memory of a run that draws answers."""
    config, layout, on_gpu = run.config, run.layout, run.mesh.devices.flat[0].platform != "cpu"
    validation = run.data.validation
    prompts = validation.prompts if isinstance(validation, PromptRows) else ()
    evaluated = len(prompts[: config.evaluation.batches * config.rl.prompts])
    generation = generation_of(config, generator_layout(run, sampler), longest_prompt(run.data), evaluated)
    estimate = estimate_memory(layout.config, layout.plan)
    step = estimate.device + (0 if on_gpu else estimate.host)
    state = estimate.optimizer if on_gpu else min(step, estimate.optimizer + estimate.host)
    # Weights in another layout lie beside the copies of their layers, for which a CPU needs no memory; on other
    # devices the next version's comes while the one before it draws.
    copies = 1 + (on_gpu and config.rl.sampler != SamplerConfig()) + sampler.apart
    return RolloutBytes(step, state, generation, copies, _reference_bytes(run), sampler.apart)


def generation_of(config: Config, layout: StepLayout, longest: int, evaluated: int = 0) -> GenerationBytes:
    """The bytes of drawing a batch of answers to prompts of at most `longest` tokens in a layout of generation, or of
    answers to `evaluated` validation prompts, whichever are more."""
    rl = config.rl
    rows, longest = rl.prompts * rl.group, positions_needed(config, longest) - rl.answer_tokens
    # The conversations of a group go on from texts of their own.
    answers = rl.group if rl.environment is None else 1
    draws = (rows // answers, answers), (min(evaluated, rows * layout.plan.axes.data), 1)
    sizes = longest, rl.answer_tokens
    every = [generation_bytes(layout, prompts, to_each, *sizes) for prompts, to_each in draws if prompts]
    return max(every, key=lambda one: one.drawing)


def generator_layout(run: Run, sampler: Sampler) -> StepLayout:
    """The layout in which the answers of a run are drawn."""
    if sampler.layout is not None:
        return generation_layout(*sampler.layout)
    config = config_of_generator(run)
    if run.plan.axes.pipe == 1:
        return generation_layout(config, run.mesh, zero=config.parallel.zero)
    return generation_layout(config, joined_mesh(run.mesh), zero=ZERO)


def check_rollouts_fit(run: Run, sampler: Sampler, bytes_each: RolloutBytes) -> None:
    """Refuse a run whose arrays do not fit while answers are drawn, or beside its steps. Raises `UserError`."""
    limit, sharing = memory_limit(run.mesh)
    state = bytes_each.state + bytes_each.reference
    needed = {"rl": bytes_each.drawing * (sharing if not sampler.apart else 1), "loss.reference": state * sharing}
    if sharing > 1 and sampler.apart:  # the devices of a machine without others
        needed["rl"] = bytes_each.drawing * sampler.devices + state * sharing
    for key, amount in needed.items():
        if amount > limit:
            raise UserError(
                f"{key}: drawing answers takes {bytes_each.words()}; together {size(amount, 2)} of the "
                f"{size(limit, 2)} that {'a device has' if sharing == 1 else plural(sharing, 'device') + ' share'}; "
                "expected fewer rl.prompts x rl.group, fewer rl.answer_tokens, a layout that splits more (parallel, "
                "rl.sampler), or more devices"
            )


def _reference_bytes(run: Run) -> int:
    """Bytes of the penalty's reference on a device; 0 without one."""
    source = run.models.reference
    if policy_of(run.config.loss).kl == "none" or source is None:
        return 0
    return weight_bytes(generation_layout(*mesh_of(reference_config(run.config, source), list(run.mesh.devices.flat))))

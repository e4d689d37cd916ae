"""The model that samples answers: on the mesh of the training step between steps, on a separate mesh, or a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import jax
import numpy as np
from jax.sharding import Mesh

from jaxpar.config import Config, LossConfig, UserError
from jaxpar.config.axes import axis_sizes, fixed_devices
from jaxpar.config.mappings.sampler import SamplerConfig
from jaxpar.config.plan import AxisSizes
from jaxpar.config.schema.reinforcement import RlConfig
from jaxpar.distributed.devices import Device
from jaxpar.generation.generator import Generator
from jaxpar.generation.joined_stages import joined_mesh
from jaxpar.generation.placed_model import PlacedModel
from jaxpar.generation.sampling import Sampling
from jaxpar.generation.scorer import Scorer
from jaxpar.layers.experts.feed_forward import ROUTING
from jaxpar.layout.make_plan import resolve_config
from jaxpar.mesh.build import build_mesh
from jaxpar.mesh.parameters import Weights
from jaxpar.pages.units import plural
from jaxpar.rl.answer_scores import answer_scores
from jaxpar.rl.answers import Answer
from jaxpar.rl.environments.conversation import Conversations
from jaxpar.rl.prompts import Prompt
from jaxpar.rl.sampling.served import ServedGenerator
from jaxpar.rl.sampling.transfer import WeightTransfer
from jaxpar.training.run.continuing import config_of_generator, generated_with, generator_of, without_stages
from jaxpar.training.run.run import Run


def split_devices(config: Config, devices: Sequence[Device]) -> tuple[list[Device], list[Device]]:
    """The devices of the training step, and those of the sampler (`rl.sampler.devices`).

    Raises:
        UserError: the two meshes would overlap in part, or leave devices out, or there are several processes.
    """
    taken = config.rl.sampler.devices or 0
    if not taken:
        return list(devices), []
    if jax.process_count() > 1:
        raise UserError(
            f"rl.sampler.devices: {taken} in a job of {jax.process_count()} processes; expected null, which takes "
            "turns on all devices, a server that draws (rl.sampler.url), or a job of one process"
        )
    left, wanted = len(devices) - taken, fixed_devices(config.parallel)
    if left < 1 or wanted not in (None, left):
        layout = "one or more" if wanted is None else str(wanted)
        how = "overlap in part on" if (wanted or 1) > left else "are not all of"
        raise UserError(
            f"rl.sampler.devices: {taken}, and {layout} of the training step (parallel) {how} the job's "
            f"{plural(len(devices), 'device')}; expected both to add up to them, or rl.sampler.devices null, which "
            "takes turns on the same ones"
        )
    return list(devices[:left]), list(devices[left:])


def sampler_layout(config: Config, devices: Sequence[Device]) -> tuple[Config, Mesh]:
    """The configuration of the sampler on its devices, and its mesh. Raises `UserError` for sizes that do not fit."""
    asked, size = config.rl.sampler, len(devices)
    axes = {"pipe": 1, "replica": 1, "fsdp": asked.fsdp or -1}
    axes |= {"expert": asked.expert, "context": asked.context, "tensor": asked.tensor}
    parallel = replace(without_stages(config.parallel, axes), zero=0, microbatches=1)
    data = replace(
        config.data, source="synthetic", path=None, validation_path=None, tokenizer=None, end_token=None,
        batch_size=8 * size, sequence_length=8 * size, packed=False, routing=None,
    )  # fmt: skip
    separate = replace(config, parallel=parallel, data=data, loss=LossConfig(), rl=RlConfig())
    try:
        separate = resolve_config(separate, size)
        return separate, build_mesh(AxisSizes(**axis_sizes(separate.parallel)), devices)
    except UserError as error:
        raise UserError(f"rl.sampler: {error}") from None


class Sampler:
    """Samples answers from a run's model.

    Args:
        run: whose model it is.
        devices: the sampler's devices; if empty, the run's.
        conversations: with the run's environment; None without one.
    """

    def __init__(self, run: Run, devices: Sequence[Device], conversations: Conversations | None = None):
        self._run, self.devices, self._conversations = run, len(devices), conversations
        self._generator: Generator | ServedGenerator | None = None
        self.layout: tuple[Config, Mesh] | None = None
        """Configuration and mesh of `rl.sampler`; None where answers are drawn on the run's mesh in its layout."""
        self._served: ServedGenerator | None = None
        if run.config.rl.sampler.url is not None:
            self._generator = self._served = ServedGenerator(run, CurrentScores(run).scored)
        elif run.config.rl.sampler != SamplerConfig():
            self.layout = sampler_layout(run.config, devices or list(run.mesh.devices.flat))
            self.transfer = WeightTransfer(run, *self.layout)

    @property
    def served(self) -> bool:
        """Whether a server draws, which process 0 of a job asks."""
        return self._served is not None

    @property
    def apart(self) -> bool:
        """Whether it has separate devices, or is a server."""
        return self.devices > 0 or self.served

    def placed(self, weights: Weights) -> Weights:
        """Weights of the run in the sampler's layout, for `drawn`."""
        if self._served is not None:
            return self._served.placed(weights)
        return generated_with(self._run, weights)[1] if self.layout is None else self.transfer(weights)

    def drawn(
        self, weights: Weights, prompts: Sequence[Prompt], temperature: float, first: int = 0, group: int = 1
    ) -> list[Answer]:
        """`group` answers to each of `prompts`, in the order of the prompts.

        Args:
            weights: from `placed`.
            prompts: the prompts.
            temperature: of the softmax; 0 takes the likeliest tokens.
            first: index of the first answer, by which random draws are seeded.
            group: answers to each prompt.
        """
        end = self._run.data.separator
        assert end is not None, "a token ends answers"
        generator = self._updated(weights)
        sampling = Sampling(temperature=temperature, tempered=True)
        draw = partial(generator.continued, sampling=sampling, stop=[end], first_number=first)
        if temperature and self._run.config.data.routing is not None:
            draw = partial(draw, records=True)
        if self._conversations is not None:
            answers = self._conversations.answers([one for one in prompts for _ in range(group)], end, draw)
            generator.drop_weights()
            return answers
        made = draw([one.tokens for one in prompts], self._run.config.rl.answer_tokens, answers=group)
        generator.drop_weights()  # frees memory for the training step
        answers = []
        for prompt, one in zip([one for one in prompts for _ in range(group)], made, strict=True):
            ending = [] if one.ending is None else [one.ending]
            tokens = (*one.tokens.tolist(), *([end] if one.ended else []))
            likely, routing = np.array([*one.log_probabilities, *ending]), one.recorded.get(ROUTING)
            answers.append(Answer(prompt, tokens, likely, one.ended, routing=routing))
        return answers

    def _updated(self, weights: Weights) -> Generator | ServedGenerator:
        """The generator with these weights; its programs are compiled once."""
        if self._generator is None:
            rl, seed = self._run.config.rl, self._run.config.run.seed
            slots = rl.prompts * rl.group
            self._generator = (
                generator_of(self._run, seed, slots)
                if self.layout is None
                else Generator(*self.layout, weights, seed=seed, slots=slots)
            )
        self._generator.update(weights)
        return self._generator


class CurrentScores:
    """Scores answers with the current weights of a run, on its devices."""

    def __init__(self, run: Run):
        self._run = run
        mesh = run.mesh if run.plan.axes.pipe == 1 else joined_mesh(run.mesh)
        config = config_of_generator(run)
        self._transfer = WeightTransfer(run, config, mesh)
        self._scorer = Scorer(PlacedModel(config, mesh, {}), run.config.rl.temperature)

    def __call__(self, answers: Sequence[Answer]) -> list[np.ndarray]:
        """The log-probability of each token of each answer, with the current weights."""
        return self.scored(answers, self._run.current_weights())

    def scored(self, answers: Sequence[Answer], weights: Weights) -> list[np.ndarray]:
        """The log-probability of each token of each answer, with other weights of the run."""
        model = self._scorer.model
        self._scorer.model = replace(model, weights=self._transfer(weights))
        scores = answer_scores(self._scorer, answers)
        self._scorer.model = model  # frees memory for the training step
        return scores

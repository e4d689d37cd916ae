"""A run that learns from answers of its own model, which are drawn with its weights and rewarded."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from itertools import count
from typing import Any

import jax
import numpy as np

from jaxpar.checkpoint.processes import run_on_process_0
from jaxpar.config import Config, virtual_devices_needed
from jaxpar.config.mappings.policy import policy_of
from jaxpar.distributed import liveness
from jaxpar.distributed.devices import Device
from jaxpar.generation.scorer import Scorer
from jaxpar.layers.experts.feed_forward import ROUTING
from jaxpar.layout.state import TrainState
from jaxpar.mesh.parameters import Weights
from jaxpar.model.flops import Pairs, seen_pairs
from jaxpar.rl.answer_scores import answer_scores, reference_scorer
from jaxpar.rl.answers import Answer, answer_rows
from jaxpar.rl.environments.conversation import Conversations, conversations_of
from jaxpar.rl.experience import Experience, experience_of
from jaxpar.rl.memory import check_rollouts_fit, rollout_bytes
from jaxpar.rl.prompts import Prompt, PromptRows
from jaxpar.rl.rewards.builtin import check_reward, is_right
from jaxpar.rl.rewards.rewarder import Rewarder
from jaxpar.rl.room import check_room
from jaxpar.rl.sampling.buffer import RolloutBuffer
from jaxpar.rl.sampling.rollouts import Rollouts, SavedRollouts
from jaxpar.rl.sampling.sampler import CurrentScores, Sampler, split_devices
from jaxpar.rl.sampling.shared_buffer import SharedBuffer
from jaxpar.training.errors import TrainingError
from jaxpar.training.run.run import Run

SUCCESS = "answer"
"""The column that a right answer has."""
ROLLOUTS = "rollouts"
"""The fact of a checkpoint with the answers that were drawn ahead."""
SHOWN = 4
"""Answers of an evaluation that the report shows."""


class RolloutRun(Run):
    """A run whose batches are answers to prompts, drawn and rewarded before a step (`data.source: prompts`).

    The prompts and draws of a batch depend on the seed, its index and the weights alone. Where sampler and trainer
    take turns, the weights do so too: a run that is continued goes on bit for bit, where its rewards do.
    """

    _sampler_devices: Sequence[Device] = ()

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        check_room(self.config, self.data)
        rl = self.config.rl
        for name in rl.rewards:
            check_reward(name)
        if self.conversations is not None:
            run_on_process_0(self.conversations.start)
        self._sampler = Sampler(self, self._sampler_devices, self.conversations)
        self.memory = None if rl.sampler.url is not None else rollout_bytes(self, self._sampler)
        """Bytes of a device beside its steps; None where a server draws."""
        if self.memory is not None:
            check_rollouts_fit(self, self._sampler, self.memory)
        self._steps_of_batch = rl.minibatches * rl.epochs
        lag = {"sync": 0, "one_step_off": 1}.get(rl.mode, rl.staleness or 0)
        newest = self._sampler.apart and rl.mode == "async"
        self._buffer = (
            SharedBuffer(self._rollouts, self._sampler.placed, self._prompts_of, lag, newest=newest)
            if self._sampler.served and jax.process_count() > 1
            else RolloutBuffer(self._rollouts, self._sampler.placed, lag, beside=self._sampler.apart, newest=newest)
        )
        self._experience: Experience | None = None
        """The batch of answers of the last step."""
        self._sampler_ended = self._step_began = time.perf_counter()
        run_on_process_0(self.rewarder.start)  # before anything is compiled or written

    @property
    def prompts(self) -> PromptRows:
        """The prompts to train on."""
        assert isinstance(self.data.train, PromptRows), "data.source: prompts"
        return self.data.train

    @cached_property
    def rewarder(self) -> Rewarder:
        """The rewards of the configuration. Raises `UserError` where one is wrong."""
        rl = self.config.rl
        names = dict(rl.rewards) or dict.fromkeys(self.prompts.rewards, 1.0)
        stops, required = rl.on_reward_error == "stop", rl.environment is None
        return Rewarder(names, rl.reward_seconds, stops=stops, required=required)

    @cached_property
    def conversations(self) -> Conversations | None:
        """Conversations with the environment of the configuration, if it has one."""
        return conversations_of(self.config)

    @cached_property
    def _reference(self) -> Scorer | None:
        """The model of the penalty, if there is one."""
        if policy_of(self.config.loss).kl == "none":
            return None
        assert self.models.reference is not None, "the penalty's reference is checked"
        return reference_scorer(self.config, self.models.reference, list(self.mesh.devices.flat))

    @cached_property
    def _current_scores(self) -> CurrentScores:
        return CurrentScores(self)

    @classmethod
    def needed_devices(cls, config: Config) -> int:
        """See `Run`."""
        return virtual_devices_needed(config.parallel) + (config.rl.sampler.devices or 0)

    def training_devices(self, config: Config, devices: Sequence[Device]) -> list[Device]:
        """See `Run`: those that the sampler does not have."""
        left, self._sampler_devices = split_devices(config, devices)
        return left

    def fetching(self) -> AbstractContextManager[None]:
        """Times the drawing of answers as work of the devices, not as a wait for data."""
        return self.timer.waiting()

    def batches_from(self, first: int) -> Iterator[tuple[dict[str, jax.Array], Pairs]]:
        """See `Run`. Each batch is made when it is asked for, with the weights of that moment."""
        for step in count(first):
            liveness.report_activity("drawing answers", busy=True)
            arrays = self._batch(step)
            if step == first and "reward" not in self.last_metrics:
                talks = self.conversations
                failure = run_on_process_0(lambda talks=talks: (talks and talks.failure) or self.rewarder.failure)
                raise TrainingError(f"no answer of step {first + 1} has a reward ({failure}): the run stopped")
            pairs = seen_pairs(self.config.model, arrays, packed=self.config.data.packed)
            yield self.placer({name: one[self.placer.rows] for name, one in arrays.items()}), pairs

    def evaluation(self) -> dict[str, float]:
        """The rewards of the likeliest answers to validation prompts: their mean, and its negative as `loss`, where
        there are any; and the share of answers that are right where prompts have an answer."""
        validation = self.data.validation
        assert isinstance(validation, PromptRows), "there is validation data"
        prompts = list(validation.prompts[: self.config.evaluation.batches * self.config.rl.prompts])
        rollouts = self._buffer.beside(self._likeliest, prompts, self.evaluated_weights())
        answers, rewards = rollouts.answers, rollouts.rewards[:, 0]
        self.samples = [
            (self._decoded(one.prompt.tokens), f"{self._text(one)} (reward {reward:.3g})")
            for one, reward in list(zip(answers, rewards, strict=True))[:SHOWN]
        ]
        metrics = {"truncated": float(np.mean([one.truncated for one in answers]))}
        if not np.isnan(rewards).all():
            metrics["reward"] = float(np.nanmean(rewards))
            metrics["loss"] = -metrics["reward"]
        wanted = [one.prompt.record.get(SUCCESS) for one in answers]
        if all(one is not None for one in wanted):
            right = [is_right(self._text(one), answer) for one, answer in zip(answers, wanted, strict=True)]
            metrics["success"] = float(np.mean(right))
        return metrics

    def brief(self) -> list[tuple[str, str]]:
        """See `Run`: the memory of drawing answers."""
        drawn = f"by {self.config.rl.sampler.url}" if self.memory is None else self.memory.words()
        return [("answers", drawn)]

    def epochs(self, steps: int) -> dict[str, float]:
        """See `Run`."""
        return self.prompts.epochs(-(-steps // self._steps_of_batch) * self.config.rl.prompts)

    def facts(self) -> dict[str, object]:
        """See `Run`: the answers that were drawn and not learned from to the end."""
        is_within = bool(self.steps_done % self._steps_of_batch) and self._experience is not None
        current = self._experience if is_within else None
        waiting = self._buffer.settled()
        if not waiting and current is None:
            return {}
        rollouts, before = (None, None) if current is None else (current.rollouts, current.before)
        saved = SavedRollouts(self._buffer.following, self._buffer.dropped, waiting, rollouts, before)
        return {ROLLOUTS: saved.to_bytes()}

    def continue_from(self, saved: TrainState, facts: Mapping[str, Any]) -> str | None:
        """See `Run`."""
        notice = super().continue_from(saved, facts)
        batches = -(-self.steps_done // self._steps_of_batch)
        drawn = SavedRollouts(batches, 0, [])
        if ROLLOUTS in facts:
            drawn = SavedRollouts.from_bytes(facts[ROLLOUTS], self._prompts_of)
        self._buffer.restore(drawn.following, drawn.dropped, drawn.waiting)
        self._experience = None if drawn.current is None else self._experienced(drawn.current, drawn.before)
        return notice

    def close(self) -> None:
        """See `Run`: a sampler that draws ahead ends with the batch that it has begun."""
        self._buffer.close()
        for name in ("rewarder", "conversations"):
            if (begun := vars(self).get(name)) is not None:
                begun.close()

    def _batch(self, step: int) -> dict[str, np.ndarray]:
        """The rows of the batch of a step, of all processes; `last_metrics` says what they hold."""
        rl, data, policy = self.config.rl, self.config.data, policy_of(self.config.loss)
        version, part = divmod(step, self._steps_of_batch)
        if not self._sampler.apart:
            jax.block_until_ready(self.state.step)
        began = time.perf_counter()
        if not part:
            self._buffer.refresh(version, self.current_weights())
            rollouts = self._buffer.take(version)
            several = self._steps_of_batch > 1
            before = self._current_scores(rollouts.answers) if several else None
            self._experience = self._experienced(rollouts, before)
        assert self._experience is not None, "a batch begins with its first step, or is restored"
        learned = self._experience.learned(part, rl, policy)
        ended = time.perf_counter()
        tokens, self._learned_tokens = self._learned_tokens, sum(one.answer.size for one in learned)
        self.last_metrics = self._experience.metrics() | {
            "staleness": float(version - self._experience.rollouts.version),
            "dropped": float(self._buffer.dropped),
            "trainer_wait_seconds": ended - began,
            "learned_tokens_per_second": tokens / max(began - self._step_began, 1e-9),
        }
        self._step_began = ended
        routing = next((field for field in self.layout.batch.fields if field.name == ROUTING), None)
        rows = answer_rows(learned, data.batch_size, data.sequence_length, routing)
        return rows | {"examples": step * data.batch_size + np.arange(data.batch_size)}

    _learned_tokens = 0
    """Tokens of answers in the batch of the last step."""

    def _rollouts(self, index: int, version: int, weights: Weights) -> Rollouts:
        """Draw and reward answers to batch `index` of the prompts, with weights of a version."""
        rl, began = self.config.rl, time.perf_counter()
        prompts, first = self._prompts_of(index), index * rl.prompts * rl.group
        answers = self._sampler.drawn(weights, prompts, rl.temperature, first, rl.group)
        drawn = time.perf_counter()
        rewards = self._rewards(answers, rl.group)
        idle, self._sampler_ended = began - self._sampler_ended, time.perf_counter()
        return Rollouts(index, version, answers, rewards, drawn - began, self._sampler_ended - drawn, idle)

    def _experienced(self, rollouts: Rollouts, before: Sequence[np.ndarray] | None) -> Experience:
        references = (
            [np.zeros(len(one.tokens)) for one in rollouts.answers]
            if self._reference is None
            else answer_scores(self._reference, rollouts.answers)
        )
        return experience_of(rollouts, references, before, self.config.rl, policy_of(self.config.loss))

    def _prompts_of(self, index: int) -> list[Prompt]:
        prompts = self.config.rl.prompts
        return self.prompts.taken(index * prompts, prompts)

    def _likeliest(self, prompts: Sequence[Prompt], weights: Weights) -> Rollouts:
        """The likeliest answer to each of some prompts, and its reward."""
        answers = self._sampler.drawn(weights, prompts, 0.0)
        return Rollouts(0, 0, answers, self._rewards(answers, 1), 0.0, 0.0, 0.0)

    def _rewards(self, answers: Sequence[Answer], group: int) -> np.ndarray:
        """The reward of each answer [prompt, answer], those of a prompt side by side; NaN without one."""
        texts = [self._text(one) for one in answers]
        groups = [([answers[at].prompt.record] * group, texts[at : at + group]) for at in range(0, len(answers), group)]
        rewarded = lambda: [self.rewarder.rewards(records, texts) for records, texts in groups]
        # With a server process 0 alone has the answers, in a thread of its own.
        rewards = rewarded() if self._sampler.served else run_on_process_0(rewarded)
        return np.array(rewards, np.float64) + np.reshape([one.reward for one in answers], (-1, group))

    def _text(self, answer: Answer) -> str:
        return self._decoded(answer.text_tokens())

    def _decoded(self, tokens: Sequence[int]) -> str:
        assert self.data.decode is not None, "prompts are texts"
        return self.data.decode(tokens)

"""A run that learns from answers of its own model: each step draws them with the current weights and rewards them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np

from jaxpar.checkpoint.processes import from_first
from jaxpar.config import UserError
from jaxpar.config.mappings.policy import policy_of
from jaxpar.data import batch_index
from jaxpar.distributed import liveness
from jaxpar.generation.generator import Generator
from jaxpar.generation.sampling import Sampling
from jaxpar.layout.stages import mask_of
from jaxpar.mesh.parameters import Weights
from jaxpar.model.flops import Pairs, windows
from jaxpar.rl.advantages import advantages, overlong_penalty, token_weights
from jaxpar.rl.answers import Answer, Learned, answer_rows
from jaxpar.rl.environments.conversation import Conversations, conversations_of
from jaxpar.rl.prompts import Prompt, PromptRows
from jaxpar.rl.reference import ReferenceModel
from jaxpar.rl.rewards.builtin import check_reward, is_right
from jaxpar.rl.rewards.rewarder import Rewarder
from jaxpar.training.errors import TrainingError
from jaxpar.training.run.continuing import generated_with, generator_of
from jaxpar.training.run.run import Run
from pallas_kernels.masks import visible_pairs

SUCCESS = "answer"
"""The column that a right answer has."""


class RolloutRun(Run):
    """A run whose batches are answers to prompts, drawn and rewarded before each step (`data.source: prompts`).

    The prompts and draws of a step depend on the seed, the step and the weights alone: a run that is continued goes on
    bit for bit, where its rewards do.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._check_room()
        for name in self.config.rl.rewards:
            check_reward(name)
        if self.conversations is not None:
            from_first(self.conversations.start)
        self._generators: dict[float, Generator] = {}

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
        return conversations_of(self.config.rl, self.data)

    @cached_property
    def _reference(self) -> ReferenceModel | None:
        """The model of the penalty, if there is one."""
        if policy_of(self.config.loss).kl == "none":
            return None
        assert self.models.reference is not None, "the penalty's reference is checked"
        return ReferenceModel(self.config, self.models.reference, list(self.mesh.devices.flat))

    def fetching(self) -> AbstractContextManager[None]:
        """Times the drawing of answers as work of the devices, not as a wait for data."""
        return self.timer.waiting()

    def batches_from(self, first: int) -> Iterator[tuple[dict[str, jax.Array], Pairs]]:
        """See `Run`. Each batch is made when it is asked for, with the weights of that moment."""
        began, index = first, batch_index(first, self.left_out)
        from_first(self.rewarder.start)  # one that does not work ends the run before its first step
        while True:
            liveness.at("drawing answers", busy=True)
            arrays = self._batch(index)
            if first == began and "reward" not in self.last_metrics:
                failure = self.rewarder.failure if self.conversations is None else self.conversations.failure
                raise TrainingError(f"no answer of step {first + 1} has a reward ({failure}): the run stopped")
            mask = mask_of(self.config, self.config.model)
            pairs = {
                window: visible_pairs(replace(mask, window=window), arrays["segments"])
                for window in windows(self.config.model)
            }
            yield self.placer({name: one[self.placer.rows] for name, one in arrays.items()}), pairs
            first += 1
            index = batch_index(first, self.left_out)

    def evaluation(self) -> dict[str, float]:
        """The rewards of the likeliest answers to held-out prompts: their mean, negative as `loss`, and the share of
        answers that are right where prompts have an answer."""
        heldout = self.data.heldout
        assert isinstance(heldout, PromptRows), "there is held-out data"
        rl = self.config.rl
        prompts = list(heldout.prompts[: self.config.evaluation.batches * rl.prompts])
        answers = self._drawn(self.evaluated_weights(), prompts, 0.0)
        rewards = self._rewards(answers, 1)[:, 0]
        reward = float(np.nanmean(rewards)) if not np.isnan(rewards).all() else float("nan")
        metrics = {"loss": -reward, "reward": reward, "truncated": float(np.mean([not one.ended for one in answers]))}
        wanted = [one.prompt.record.get(SUCCESS) for one in answers]
        if all(one is not None for one in wanted):
            right = [is_right(self._text(one), answer) for one, answer in zip(answers, wanted, strict=True)]
            metrics["success"] = float(np.mean(right))
        return metrics

    def epochs(self, steps: int) -> dict[str, float]:
        """See `Run`."""
        return self.prompts.epochs(batch_index(steps, self.left_out) * self.config.rl.prompts)

    def _batch(self, index: int) -> dict[str, np.ndarray]:
        """The rows of batch `index`, of all processes; `last_metrics` says what they hold."""
        rl, data, policy = self.config.rl, self.config.data, policy_of(self.config.loss)
        prompts = self.prompts.taken(index * rl.prompts, rl.prompts)
        began = time.perf_counter()
        answers = self._drawn(self.current_weights(), prompts, 1.0, index * rl.prompts * rl.group, rl.group)
        drawn = time.perf_counter()
        raw = self._rewards(answers, rl.group)
        rewarded = time.perf_counter()
        lengths = np.array([one.size for one in answers]).reshape(raw.shape)
        references = self._references(answers)
        rewards = raw - overlong_penalty(lengths, rl.answer_tokens, policy.overlong)
        if policy.kl_in == "reward" and policy.kl != "none":
            k1 = [
                float((one.log_probabilities - other)[one.drawn].sum())
                for one, other in zip(answers, references, strict=True)
            ]
            rewards = rewards - policy.kl_weight * np.reshape(k1, raw.shape)
        each = advantages(rewards, policy, raw).reshape(-1)
        valid = np.flatnonzero(~np.isnan(each))
        weights = token_weights(lengths.reshape(-1)[valid], rl.answer_tokens, policy.average)
        learned = [
            Learned(answers[at], float(each[at]), float(weight), references[at])
            for at, weight in zip(valid, weights, strict=True)
        ]
        self.last_metrics = self._metrics(answers, raw, each) | {
            "draw_seconds": drawn - began, "reward_seconds": rewarded - drawn,
            "drawn_tokens_per_second": float(lengths.sum()) / max(drawn - began, 1e-9),
        }  # fmt: skip
        rows = answer_rows(learned, data.batch_size, data.sequence_length)
        return rows | {"examples": index * data.batch_size + np.arange(data.batch_size)}

    def _metrics(self, answers: Sequence[Answer], rewards: np.ndarray, advantage: np.ndarray) -> dict[str, float]:
        """Means over the answers of a step; without any reward there is no mean of them."""
        means = {
            "answer_tokens": float(np.mean([one.size for one in answers])),
            "truncated": float(np.mean([not one.ended for one in answers])),
            "without_reward": float(np.isnan(rewards).mean()),
            "left_out": float(np.isnan(advantage).mean()),
        }
        if not np.isnan(rewards).all():
            spread = [np.nanstd(group) for group in rewards if not np.isnan(group).all()]
            means |= {"reward": float(np.nanmean(rewards)), "reward_spread": float(np.mean(spread))}
        return means

    def _drawn(
        self, weights: Weights, prompts: Sequence[Prompt], temperature: float, first: int = 0, group: int = 1
    ) -> list[Answer]:
        """Answers to each of `prompts`, those of one side by side."""
        end = self.data.separator
        assert end is not None, "a token ends answers"
        generator = self._generator(temperature)
        generator.update(generated_with(self, weights)[1])
        draw = partial(generator.continued, stop=[end], first_number=first)
        if self.conversations is not None:
            answers = self.conversations.answers([one for one in prompts for _ in range(group)], end, draw)
            generator.drop_weights()
            return answers
        made = draw([one.tokens for one in prompts], self.config.rl.answer_tokens, answers=group)
        generator.drop_weights()  # the step needs the memory
        answers = []
        for prompt, one in zip([one for one in prompts for _ in range(group)], made, strict=True):
            ending = [] if one.ending is None else [one.ending]
            tokens = (*one.tokens.tolist(), *([end] if one.ended else []))
            answers.append(Answer(prompt, tokens, np.array([*one.log_probabilities, *ending]), one.ended))
        return answers

    def _generator(self, temperature: float) -> Generator:
        """The generator of a temperature, whose programs stay compiled."""
        if temperature not in self._generators:
            sampling = Sampling(temperature=temperature)
            self._generators[temperature] = generator_of(self, sampling, self.config.run.seed)
        return self._generators[temperature]

    def _rewards(self, answers: Sequence[Answer], group: int) -> np.ndarray:
        """The reward of each answer [prompt, answer], those of a prompt side by side; NaN without one."""
        texts = [self._text(one) for one in answers]
        groups = [([answers[at].prompt.record] * group, texts[at : at + group]) for at in range(0, len(answers), group)]
        rewards = from_first(lambda: [self.rewarder.rewards(records, texts) for records, texts in groups])
        return np.array(rewards, np.float64) + np.reshape([one.reward for one in answers], (-1, group))

    def _references(self, answers: Sequence[Answer]) -> list[np.ndarray]:
        if self._reference is None:
            return [np.zeros(len(one.tokens)) for one in answers]
        return self._reference.log_probabilities(answers)

    def _text(self, answer: Answer) -> str:
        assert self.data.decode is not None, "prompts are texts"
        return self.data.decode(answer.text_tokens())

    def _check_room(self) -> None:
        """Refuse rows that have no room for a step's answers. Raises `UserError`."""
        rl, data = self.config.rl, self.config.data
        longest = max(rows.longest for rows in (self.data.train, self.data.heldout) if isinstance(rows, PromptRows))
        each, answers = longest + rl.answer_tokens - 1, rl.prompts * rl.group
        if each > data.sequence_length:
            raise UserError(
                f"data.sequence_length: {data.sequence_length} has no room for a prompt of {longest} tokens and an "
                f"answer of {rl.answer_tokens} (rl.answer_tokens); expected at least {each}"
            )
        model = self.config.model
        # Conversations are continued together: by the most tokens that one of them may have left.
        positions = longest + rl.answer_tokens * (1 if rl.environment is None else 2)
        if model.position == "learned" and positions > model.max_positions:
            raise UserError(
                f"model.max_positions: {model.max_positions} learned positions are fewer than a prompt of {longest} "
                f"tokens and an answer of {rl.answer_tokens} (rl.answer_tokens) need, which are {positions}"
            )
        rows = -(-answers // (data.sequence_length // each))
        if rows > data.batch_size:
            raise UserError(
                f"data.batch_size: {data.batch_size} rows of {data.sequence_length} tokens may have no room for "
                f"{answers} answers (rl.prompts x rl.group) of up to {each} tokens with their prompts; expected at "
                f"least {rows}"
            )

"""Conversations with environments: what is learned from, limits, and what a wrong environment does."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config import Config
from jaxpar.config.mappings.policy import PRESETS
from jaxpar.config.schema.reinforcement import RlConfig
from jaxpar.generation.generator import Continuation
from jaxpar.rl.answers import PER_TOKEN
from jaxpar.rl.environments.builtin import Guess
from jaxpar.rl.environments.conversation import Conversations
from jaxpar.rl.environments.tools import ToolCalls, calculate, tool_of
from jaxpar.rl.experience import Experience, experience_of
from jaxpar.rl.prompts import Bytes, Characters, Prompt, Tokenizer
from jaxpar.rl.run import RolloutRun
from jaxpar.rl.sampling.rollouts import Rollouts
from jaxpar.training.errors import TrainingError
from tests.rl.runs import config_of, devices_of, log_probabilities64
from tests.rl.test_prompts import beginning
from tests.sentences import refused

CODE = """
import time
import sys

class Echo:
    \"\"\"Says how often it was asked, and the length of what it heard; five turns.\"\"\"
    def reset(self, record):
        self.asked = 0
        print("begin")
        return [{"role": "system", "content": "0:"}] if record["answer"] != "1" else []

    def step(self, messages):
        self.asked += 1
        text = messages[-1]["content"]
        assert self.asked == sum(one["role"] == "assistant" for one in messages)
        return [{"role": "tool", "content": f"{self.asked},{len(text) % 10}:"}], 0.25, self.asked == 5

class Fails(Echo):
    \"\"\"Fails at the second turn of the prompts that say so.\"\"\"
    def step(self, messages):
        made = super().step(messages)
        how = messages[0]["content"] if self.asked == 2 else ""
        if how == "raises": raise KeyError("nothing")
        if how == "none": return None
        if how == "nan": return [], float("nan"), True
        if how == "texts": return ["a"], 0.0, False
        if how == "speaks": return [{"role": "assistant", "content": "1"}], 0.0, False
        if how == "hangs": time.sleep(60)
        if how == "exits": sys.exit(3)
        return made

class Unwilling(Echo):
    def reset(self, record):
        raise OSError("no network")

class Talks(Echo):
    def reset(self, record):
        return [{"role": "system", "content": "0:"}]

class Strange(Echo):
    \"\"\"Says what has no tokens, at once or after a turn.\"\"\"
    def reset(self, record):
        self.asked = 0
        return [{"role": "system", "content": "A"}] if record["prompt"] == "first" else []

    def step(self, messages):
        _, reward, ended = super().step(messages)
        said = {"letter": "A", "half": "\\ud800"}.get(messages[0]["content"], "1:")
        return [{"role": "tool", "content": said}], reward, ended

class Half:
    def reset(self, record):
        return []

def function(record):
    return []

NUMBER = 3
class Tool: pass
def doubled(n): return {"twice": 2 * n}
def calculate(n): return n
"""
TURNED = {"environment": "FILE:Echo", "turns": 3, "answer_tokens": 24}


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(CODE)
    return str(tmp_path / "mine.py")


def conversing(folder: Path, file: str, steps: int = 1, *, rl: dict[str, Any] | None = None, **sections: Any) -> Config:
    """A small run of conversations after the prompts of digits."""
    rl = TURNED | (rl or {})
    rl["environment"] = rl["environment"].replace("FILE", file)
    return config_of(folder, steps, rl=rl, **{"data": {"batch_size": 16, "sequence_length": 40}} | sections)


@pytest.mark.matrix(quick=(), ci=1)
@pytest.mark.parametrize("layout", [{}, {"fsdp": 2, "tensor": 2, "context": 2, "zero": 3}], ids=["one", "split"])
def test_turns_have_the_log_probabilities_of_float64_and_observations_none(tmp_path: Path, file: str, layout: dict):
    """Log-probabilities recorded turn by turn are those of the step, which reads the conversation at once."""
    config = conversing(tmp_path, file, parallel=layout)
    run = RolloutRun(config, devices=devices_of(config))
    assert run.conversations is not None
    with closing(run.rewarder), closing(run.conversations):
        rows = run._batch(0)
        metrics = run.last_metrics
        likely = log_probabilities64(run, jax.device_get(run.current_weights()), rows)
        drawn, texts, answers = rows["mask"] > 0, [], 0
        np.testing.assert_allclose(rows["sampled"][drawn], likely[drawn], atol=1e-5)
        assert all(not rows[name][~drawn].any() for name in PER_TOKEN)
        for row, segment in {(row, s) for row, every in enumerate(rows["segments"]) for s in every if s}:
            here = rows["segments"][row] == segment
            said = np.where(here & ~drawn[row])[0]
            texts.append(run.data.decode(rows["labels"][row][said]))
            answers += 1
        assert answers == 16 and any("=0:1," in text and ":2," in text for text in texts), (
            "what was said is not learned"
        )
        assert 0 < metrics["answer_tokens"] == drawn.sum() / 16 and metrics["reward"] > 0.25
        assert float(run.step().report["mismatch_kl"]) < 1e-7


LETTERS = Characters("0123456789:,=<>?abcdefghijklmnopqrstuvwxyz")


def made(
    texts: list[str], file: str, name: str, said: str = "12", codec: Characters | Bytes = LETTERS, **options: Any
) -> tuple[Any, list[Any]]:
    """Conversations whose model says the same in every turn, and their answers."""

    def draw(prompts: Any, tokens: int, *, on_token: Any) -> list[Continuation]:
        rows = []
        for row, _ in enumerate(prompts):
            spoken: list[int] = []
            cut = False
            for token in codec.encode(said)[:tokens]:
                spoken.append(token)
                if cut := on_token(row, token):
                    break
            ended = not cut and len(spoken) < tokens
            rows.append(Continuation(np.array(spoken), np.full(len(spoken), -0.5), ended, {}, -0.25 if ended else None))
        return rows

    settings = {"turns": 9, "tokens": 99, "seconds": 30.0, "stops": False} | options
    prompts = [Prompt(tuple(codec.encode(text)), {"prompt": text, "answer": "1"}) for text in texts]
    conversations = Conversations(f"{file}:{name}", (), encode=codec.encode, decode=codec.decode, **settings)
    with closing(conversations):
        return conversations, conversations.answers(prompts, codec.end, draw)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raises", "KeyError"), ("none", "step returned None; expected (observations, reward, ended)"),
        ("nan", "a reward of nan; expected a finite number"),
        ("texts", "observations ['a']; expected a list of role and content"), ("speaks", "role assistant"),
        ("hangs", "took more than 2 s (rl.reward_seconds)"), ("exits", "exit code 3"),
    ],
)  # fmt: skip
def test_an_environment_that_fails_loses_its_rollout_alone(file: str, how: str, words: str):
    """The others go on where they were, in a process that begins anew where the first one ended."""
    conversations, answers = made(["a", how, "b"], file, "Fails", seconds=2.0)
    assert np.isnan(answers[1].reward) and words in conversations.failure
    assert [answers[at].reward for at in (0, 2)] == [1.25, 1.25] and len(answers[0].turns) == 5
    with pytest.raises(TrainingError, match="an environment failed"):
        made(["a", how], file, "Fails", seconds=2.0, stops=True)


def test_one_that_cannot_begin_has_a_turn_and_no_reward(file: str):
    conversations, answers = made(["a", "b"], file, "Unwilling")
    assert "no network" in conversations.failure
    assert [(len(one.turns), one.size, np.isnan(one.reward)) for one in answers] == [(1, 3, True)] * 2


def test_one_that_says_too_much_at_once_has_no_reward(file: str):
    """The first observation is `0:`, after which there must be room for a token."""
    conversations, (answer,) = made(["a"], file, "Talks", tokens=2)
    assert "rl.answer_tokens: 2" in conversations.failure and np.isnan(answer.reward) and answer.size == 2


@pytest.mark.parametrize(("how", "codec"), [("first", LETTERS), ("letter", LETTERS), ("half", Bytes())])
def test_what_has_no_tokens_loses_its_rollout_alone(file: str, how: str, codec: Characters | Bytes):
    """A character that is none of an alphabet, or half of one."""
    conversations, answers = made(["a", how, "b"], file, "Strange", codec=codec)
    assert "Strange: an observation has no tokens" in conversations.failure
    assert [answers[at].reward for at in (0, 2)] == [1.25, 1.25] and np.isnan(answers[1].reward)
    with pytest.raises(TrainingError, match="an environment failed"):
        made([how], file, "Strange", codec=codec, stops=True)


def test_observations_follow_a_text_and_spell_special_tokens_where_they_say_so(tmp_path: Path):
    """No token that begins a document stands before them."""
    codec = Tokenizer(beginning(tmp_path), None)
    (tmp_path / "mine.py").write_text(
        "class Says:\n"
        "    def reset(self, record):\n"
        "        said = [('<|im_start|>', True), ('hi<|im_end|>', False)]\n"
        "        return [{'content': text, 'special_tokens': special} for text, special in said]\n"
        "    def step(self, messages):\n"
        "        return [], 0.0, True\n"
    )
    draw = lambda prompts, tokens, *, on_token: [Continuation(np.array([7]), np.zeros(1), False, {}, None)]
    conversations = Conversations(
        f"{tmp_path}/mine.py:Says", (), turns=1, tokens=99, seconds=30.0, stops=True, encode=codec.encode,
        decode=codec.decode,
    )  # fmt: skip
    with closing(conversations):
        (answer,) = conversations.answers([Prompt((5,), {"prompt": "a"})], codec.end, draw)
    plain = codec.encode("hi<|im_end|>")
    (begin,) = codec.encode("<|im_start|>", special_tokens=True)
    assert answer.tokens == (begin, *plain, 7) and codec.end not in plain and len(plain) > 2


def test_limits_of_turns_and_tokens(file: str):
    """A conversation of `12` and an end, and an observation of 4 tokens between two turns."""
    _, (answer,) = made(["a"], file, "Echo", turns=2)
    assert answer.turns == ((0, 3), (7, 10)) and answer.reward == 0.5 and len(answer.tokens) == 10 and answer.ended
    assert answer.text_tokens() == (1, 2) and answer.drawn.tolist() == [True] * 3 + [False] * 4 + [True] * 3
    assert answer.log_probabilities.tolist() == [-0.5, -0.5, -0.25, 0, 0, 0, 0, -0.5, -0.5, -0.25]
    _, (cut,) = made(["a"], file, "Echo", tokens=9)
    assert cut.turns == ((0, 3), (7, 9)) and not cut.ended and cut.text_tokens() == (1, 2)
    _, (full,) = made(["a"], file, "Echo", tokens=7)
    assert full.turns == ((0, 3),) and len(full.tokens) == 3, "an observation that leaves no room ends it"
    assert full.ended and [one.truncated for one in (answer, cut, full)] == [False, True, True]
    policy = replace(PRESETS["grpo"], overlong=0.5)
    rollouts = Rollouts(0, 0, [answer, full], np.array([[1.0, 1]]), 0.0, 0.0, 0.0)
    assert Experience(rollouts, np.zeros((1, 2)), [], None).metrics()["truncated"] == 0.5
    made_of = experience_of(rollouts, [], None, RlConfig(answer_tokens=16), policy)
    assert made_of.advantages[0, 0] < 0 < made_of.advantages[0, 1], "10 tokens with those of the observation"


def test_guesses_are_compared():
    game = Guess()
    assert game.reset({"answer": "4"}) == []
    said = [game.step([{"role": "assistant", "content": text}]) for text in ("7", "x", "2", "4")]
    assert [one[0]["content"] for one, _, _ in said[:3]] == ["<", "?", ">"]
    assert said[3] == ([], pytest.approx(0.55), True)


def test_tools_are_called_from_the_text(file: str):
    """In the format of Qwen and Hermes; what fails is said to the model, and a turn without a call is the last."""
    tools = ToolCalls(dict([tool_of("calculate"), tool_of(f"{file}:doubled")]))
    call = lambda name, **arguments: f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
    of = lambda text: tools.step([{"role": "assistant", "content": text}])
    text = call("calculate", expression="2 * (3 + 4)") + " and " + call("doubled", n=4)
    observations, reward, ended = of(text)
    assert (
        observations[0]["content"] == '<tool_response>14</tool_response>\n<tool_response>{"twice": 8}</tool_response>\n'
    )
    assert (reward, ended) == (0.0, False)
    for wrong, words in (
        (call("calculat", expression="1"), "KeyError"),
        (call("calculate", expression="__import__('os')"), "expected numbers"),
        (call("calculate", expression="9" * 201), "at most 200"),
        (call("calculate", n=1), "TypeError"),
        ("<tool_call>{</tool_call>", "error: JSONDecodeError"),
    ):
        assert words in of(wrong)[0][0]["content"]
    assert of("14") == ([], 0.0, True)
    assert calculate("-7 // 2 % 3 - 1 / 4") == -7 // 2 % 3 - 1 / 4


def test_what_cannot_be_is_refused(tmp_path: Path, file: str):
    for rl, *words in (
        ({"environment": "gues"}, "rl.environment", "'gues'", "did you mean guess"),
        ({"environment": "FILE:Ecko"}, "rl.environment", "has no class 'Ecko'", "did you mean Echo"),
        ({"environment": "FILE:Half"}, "rl.environment", "has no method step"),
        ({"environment": "FILE:function"}, "rl.environment", "is no class"),
        ({"environment": "nowhere.py:A"}, "rl.environment", "there is no file"),
        ({"environment": "tools"}, "rl.tools: none", "expected functions"),
        ({"tools": ("calculate",)}, "rl.tools: 'calculate'", "mine.py:Echo", "environment: tools"),
        ({"environment": "tools", "tools": ("calculat",)}, "rl.tools", "did you mean calculate"),
        ({"environment": "tools", "tools": ("calculate", f"{file}:calculate")}, "rl.tools: several", "'calculate'"),
        ({"environment": "tools", "tools": (f"{file}:NUMBER",)}, "rl.tools", "has no function 'NUMBER'"),
        ({"environment": "tools", "tools": (f"{file}:Tool",)}, "rl.tools", "is no function, but type"),
        ({"turns": 0}, "rl.turns", "0", "at least 1"),
    ):
        with refused(*words):
            RolloutRun(conversing(tmp_path, file, rl=rl), devices=jax.devices()[:1])
    learned = {"position": "learned", "max_positions": 54}
    with refused("model.max_positions: 54", "which are 55"):
        RolloutRun(conversing(tmp_path, file, model=learned), devices=jax.devices()[:1])
    with refused("rl.turns: 2 would not be used", "rl.environment is null"):
        RolloutRun(config_of(tmp_path, 1, rl={"turns": 2}), devices=jax.devices()[:1])

"""Rewards in processes of their own: what they return, and what a wrong one does."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jaxpar.config import UserError
from jaxpar.rl.rewards.builtin import REWARDS, check_reward
from jaxpar.rl.rewards.json import _validator
from jaxpar.rl.rewards.process import RewardProcess
from jaxpar.rl.rewards.rewarder import Rewarder
from jaxpar.rl.worker_process import WorkerError
from jaxpar.training.errors import TrainingError
from tests import patience
from tests.sentences import refused

CODE = """
from __future__ import annotations
import dataclasses
import subprocess
import time
from pathlib import Path

@dataclasses.dataclass
class Settings:
    scale: int = 1

def length(prompts, completions, **columns):
    print("seen", len(prompts))
    return [len(text) * scale for text, scale in zip(completions, columns["scale"])]

async def later(prompts, completions, **columns):
    return [1 for _ in completions]

def broken(prompts, completions, **columns):
    raise KeyError("nothing")

def short(prompts, completions, **columns):
    return [1.0]

def odd(prompts, completions, **columns):
    return [None, float("nan"), 2]

def hangs(prompts, completions, **columns):
    time.sleep(60)

def writes(prompts, completions, **columns):
    subprocess.run(["echo", "hello"])
    return [1.0 for _ in completions]

def waits(prompts, completions, **columns):
    child = subprocess.Popen(["sleep", "60"])
    Path(__file__).with_name("child").write_text(str(child.pid))
    child.wait()

def ends(prompts, completions, **columns):
    raise SystemExit(3)
"""
NESTED = {"a": 1, "b": {"c": [2, 3]}}
THOUGHT = "<think>so <b></think> <answer>1</answer>"
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
PROMPTS, TEXTS, COLUMNS = ["a", "a", "a"], ["x", "yy", ""], {"scale": [1, 1, 2]}


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(CODE)
    return str(tmp_path / "mine.py")


def is_running(process: int) -> bool:
    """Whether there is such a process, which has not ended."""
    stat = Path(f"/proc/{process}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_closing_starts_no_process():
    rewarder = Rewarder({"missing_module:reward": 1.0}, 1.0, stops=False)
    rewarder.close()
    assert "processes" not in vars(rewarder)


@pytest.mark.parametrize(
    ("name", "texts", "columns", "wanted"),
    [
        ("exact", ["12", " 12\n", "13"], {"answer": ["12"] * 3}, [1, 1, 0]),
        ("characters", ["12", "15", "123", ""], {"answer": ["12"] * 4}, [1, 2 / 3, 2 / 4, 0]),
        ("exact", ["12"], {"answer": [12]}, [1]),
        ("number", ["it is 1,200.5", "7", "none"], {"answer": ["1,200.5", 8, "1"]}, [1, 0, 0]),
        ("number", ["10-3", "x = -3", "12,13"], {"answer": [3, -3, 13]}, [1, 1, 1]),
        ("pattern", ["ab\nc", "abd"], {"pattern": ["a.*c"] * 2}, [1, 0]),
        ("exact", ['{"b": 2, "a": 1.0}', '{"a": 1, "b": true}', "[]"], {"answer": [{"a": 1, "b": 2}] * 3}, [1, 0, 0]),
        ("length", ["abcd", "ab", "", ""], {"length": [4, 4, 4, 0]}, [1, 1 / 2, 0, 1]),
        ("json", ["[1]", "[1", "NaN", '{"a": 1, "a": 2}', "[" * 9999], {}, [1, 0, 0, 0, 0]),
        ("json", ["<think>1</think><answer>[1]</answer>", "<answer>{</answer>"], {}, [1, 0]),
        ("json_fields", ['{"a": 1, "b": {"c": [2, 4]}}', "3", "none"], {"answer": [NESTED] * 3}, [2 / 3, 0, 0]),
        ("json_fields", ['{"a": true, "b": {"c": [2, 3], "d": 4}}', "{}"], {"answer": [NESTED, {}]}, [2 / 3, 1]),
        ("json_length", ['{ "a" : 1, "b": {"c": [2,3]}}', "7", "-"], {"answer": [NESTED] * 3}, [1, 1 / 23, 0]),
        ("think", [f"{THOUGHT}\n", f"a{THOUGHT}", THOUGHT * 2, "<answer>1</answer>"], {}, [1, 0, 0, 0]),
        ("think", ["<think><think></think><answer>1</answer>", "<answer></answer><think></think>"], {}, [0, 0]),
        ("schema", ['{"n": 3}', '{"n": "3"}', "{}", "n"], {"schema": [SCHEMA] * 4}, [1, 0, 0, 0]),
    ],
)
def test_rewards_that_come_with_jaxpar(name: str, texts: list[str], columns: dict, wanted: list[float]):
    assert REWARDS[name](["p"] * len(texts), texts, **columns, other=["x"] * len(texts)) == pytest.approx(wanted)


def test_the_schema_of_a_file_is_a_reward(tmp_path: Path):
    (tmp_path / "n.json").write_text(json.dumps(SCHEMA))
    with closing(Rewarder({f"{tmp_path}/n.json": 2.0, "json": 1.0}, 30, stops=True)) as rewarder:
        assert rewarder.rewards([{"prompt": "a"}] * 3, ['{"n": 3}', "{}", "{"]) == [3.0, 1.0, 0.0]


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}, "enum": [{"$ref": "#/none"}, [[]]]},
        {"$ref": "b", "$defs": {"b": {"$id": "b", "$anchor": "c", "items": {"$ref": "#c"}}}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"$ref": {"$ref": "#/definitions/a"}},
         "definitions": {"a": {"type": "string"}}},
    ],
)  # fmt: skip
def test_references_to_parts_of_a_schema_are_followed(schema: Any):
    assert REWARDS["schema"](["p"], ["[[]]"], schema=[schema]) == [1.0]


def test_few_checks_of_schemas_are_kept():
    """A column may have another schema in each record."""
    assert (_validator.cache_info().maxsize or 10**9) <= 256


def test_json_that_is_nested_deeply_is_none():
    """Each function gives it 0, in place of no reward for the group."""
    for inside in (100, 101, 1200):
        text, wanted = "[" * inside + "]" * inside, float(inside == 100)
        columns = {
            "answer": [[NESTED]],
            "schema": [{"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}}],
        }
        made = {name: REWARDS[name](["p"], [text], **columns) for name in ("json", "schema", "json_fields", "exact")}
        assert made == {"json": [wanted], "schema": [wanted], "json_fields": [0.0], "exact": [0.0]}
        assert (REWARDS["json_length"](["p"], [text], **columns)[0] > 0) == (inside == 100)
    assert REWARDS["json"](["p"], ['{"a": ' * 101 + "1" + "}" * 101]) == [0.0]


def test_a_schema_fetches_nothing(monkeypatch: pytest.MonkeyPatch):
    """A reference to another document has no reward, and opens no connection."""
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("it connects"))
    with refused("the column schema", "$ref", "http://localhost:9/a.json", "leads to no schema"):
        REWARDS["schema"](["p"], ["1"], schema=[{"$ref": "http://localhost:9/a.json"}])


def test_files_that_are_no_schema_are_refused(tmp_path: Path):
    for name, text, *words in (
        ("odd.json", "{", "is not JSON"),
        ("wrong.json", '{"properties": {"n": {"type": "integre"}}}', "no JSON Schema", "/properties/n/type", "integre"),
        ("list.json", "[]", "no JSON Schema"),
        ("null.json", "null", "got None", "an object, true or false"),
        ("number.json", "5", "got 5", "an object, true or false"),
        ("version.json", '{"$schema": []}', "$schema", "[]", "2020-12"),
        ("other.json", '{"$schema": "foo"}', "$schema", "'foo'", "2020-12"),
        ("nowhere.json", '{"items": {"$ref": "#/nope"}}', "'#/nope'", "leads to no schema"),
        ("behind.json", '{"$ref": "#/x/y", "x": {"y": {"not": {"$ref": "#z"}}}}', "'#z'", "leads to no schema"),
        ("text.json", '{"$ref": "#/title/a", "title": "b"}', "'#/title/a'", "leads to no schema"),
        ("name.json", '{"$ref": "#/title", "title": "b"}', "'#/title'", "leads to no schema"),
        ("itself.json", '{"$ref": "#"}', "refers to itself without end"),
        ("deep.json", "[" * 100_000, "nested too deeply"),
        ("pattern.json", '{"pattern": "("}', "no JSON Schema", "/pattern"),
        ("none.json", None, "there is no file", "expected a JSON Schema"),
    ):
        if text is not None:
            (tmp_path / name).write_text(text)
        with refused("rl.rewards", name, *words):
            check_reward(f"{tmp_path}/{name}")


def test_functions_of_a_users_file(file: str):
    for name, wanted in (("length", [1, 2, 0]), ("later", [1, 1, 1]), ("odd", [None, None, 2]), ("writes", [1, 1, 1])):
        process = RewardProcess(f"{file}:{name}", 30)
        assert process.rewards(PROMPTS, TEXTS, COLUMNS) == wanted
        process.close()


@pytest.mark.parametrize(
    ("name", "seconds", "words"),
    [
        ("broken", 30, "KeyError"), ("short", 30, "1 rewards for 3"), ("hangs", 1, "1 s"), ("waits", 1, "1 s"),
        ("ends", 30, "exit code 3"),
    ],
)  # fmt: skip
def test_one_that_fails_loses_its_answers_alone(file: str, name: str, seconds: float, words: str):
    """And the process is there again for the next prompt."""
    process = RewardProcess(f"{file}:{name}", seconds)
    for _ in range(2):
        with pytest.raises(WorkerError, match=words):
            process.rewards(PROMPTS, TEXTS, COLUMNS)
    process.close()
    if name == "waits":
        child, until = int(Path(file).with_name("child").read_text()), time.monotonic() + patience.seconds(20)
        while is_running(child):  # it has its signal, and ends when the kernel lets it
            assert time.monotonic() < until, "its child ends with it"
            time.sleep(0.02)
    records = [{"prompt": "a", "scale": 1}] * 3
    weights = {f"{file}:length": 1.0, f"{file}:{name}": 2.0}
    with closing(Rewarder(weights, seconds, stops=False)) as rewarder:
        assert json.dumps(rewarder.rewards(records, TEXTS)) == "[NaN, NaN, NaN]"
    with closing(Rewarder(weights, seconds, stops=True)) as rewarder, pytest.raises(TrainingError, match="stopped"):
        rewarder.rewards(records, TEXTS)


def test_rewards_are_added_by_their_weights(file: str):
    with closing(Rewarder({f"{file}:length": 0.5, f"{file}:later": 3.0}, 30, stops=True)) as rewarder:
        assert rewarder.rewards([{"prompt": "a", "scale": 2}] * 3, TEXTS) == [4.0, 5.0, 3.0]


def test_rewards_that_are_not_there_are_refused(file: str):
    for name, *words in (
        ("exakt", "rl.rewards", "exakt", "did you mean exact"),
        (f"{file}:lenth", "rl.rewards", "lenth", "length"),
        ("nowhere.py:f", "rl.rewards", "nowhere.py"),
    ):
        with refused(*words):
            RewardProcess(name, 30)
    with pytest.raises(UserError, match=r"rl\.rewards"):
        Rewarder({}, 30, stops=True)


def test_a_process_that_does_not_read_is_ended():
    """A pipe is full after some 64 KiB; the next request begins another process."""
    with closing(RewardProcess("exact", 5.0)) as process:
        columns = {"answer": ["a"]}
        assert process.rewards(["p"], ["a"], columns) == [1.0]
        process._worker._seconds = 0.3
        os.kill(process._worker._process.pid, signal.SIGSTOP)
        with pytest.raises(WorkerError, match=r"exact: it did not read for 0\.3 s"):
            process.rewards(["p"], ["a" * 10**6], columns)
        process._worker._seconds = 5.0
        assert process.rewards(["p"], ["a"], columns) == [1.0]

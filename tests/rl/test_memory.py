"""The memory of drawing answers: what is predicted is what the arrays take."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxpar.config.mappings.sampler import SamplerConfig
from jaxpar.generation.engine import Engine
from jaxpar.rl import memory
from jaxpar.rl.run import RolloutRun
from tests.gpu_compile import in_child
from tests.rl.runs import config_of, devices_of
from tests.sentences import refused

CASES: dict[str, dict[str, Any]] = {
    "one device": {},
    "evaluation": {"evaluation": {"batches": 8}},
    "split": {"parallel": {"fsdp": 2, "tensor": 2, "context": 2, "zero": 3}},
    "apart": {"parallel": {"fsdp": 2}, "rl": {"sampler": SamplerConfig(devices=2, tensor=2), "mode": "one_step_off"}},
}


def local_bytes(tree: Any) -> int:
    """Bytes of a tree on its first device."""
    return sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree))


@pytest.mark.matrix(quick=(), ci=1)
@pytest.mark.parametrize("case", CASES)
def test_weights_and_cache_take_the_predicted_bytes(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch):
    sections = {name: dict(keys) for name, keys in CASES[case].items()}
    config = config_of(tmp_path, 2, data={"batch_size": 8}, **sections)
    count = len(devices_of(config)) + (config.rl.sampler.devices or 0)
    run, taken = RolloutRun(config, devices=jax.devices()[:count]), []
    free, insert, read = Engine._free, Engine._insert, [0]

    def freed(engine: Engine) -> None:
        if engine._state is not None:
            taken.append((local_bytes(engine._weights()), local_bytes(engine._state.cache)))
        free(engine)

    def inserted(engine: Engine) -> None:
        read.append(sum(local_bytes(one.prefix.cache) for one in engine._begun))
        insert(engine)

    monkeypatch.setattr(Engine, "_free", freed)
    monkeypatch.setattr(Engine, "_insert", inserted)
    with closing(run.rewarder), closing(run._buffer):
        run._batch(0)
        if config.evaluation.batches:
            run.evaluation()
    made = run.memory.generation
    assert set(taken) == {(made.weights, made.cache)}
    assert made.prefixes == max(read)
    assert run.memory.apart == (case == "apart")
    assert run.memory.drawing > made.weights + made.cache + (0 if run.memory.apart else run.memory.state)


def test_a_run_whose_answers_do_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The start of a run says what drawing takes, before anything is drawn."""
    config = config_of(tmp_path, 2)
    run = RolloutRun(config, devices=jax.devices()[:1])
    ((name, words),) = run.brief()
    assert name == "answers" and "cache" in words and "reference" not in words
    monkeypatch.setattr(memory, "memory_limit", lambda mesh: (run.memory.drawing - 1, 1))
    with refused("rl: drawing answers takes about", "rl.prompts x rl.group"):
        RolloutRun(config, devices=jax.devices()[:1])


@pytest.mark.long
def test_qwen3_8b_takes_the_predicted_bytes_on_32_h100s():
    """The program of a token reads the weights and the cache; an update gathers what a device does not have."""
    found = in_child("tests.rl.gpu_sampler:bytes_of_sampler")
    assert 0 <= found["arguments"] - found["weights"] - found["cache"] < 2**25, "with the tokens that rows have"
    assert found["made"] == pytest.approx(found["weights"], rel=1e-6)
    assert found["gathered"] == pytest.approx(found["weights"], rel=0.01), "all but norms"

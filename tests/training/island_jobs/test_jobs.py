"""Islands as full runs: their numbers, what they say, and folders and settings that are refused."""

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config import Config, UserError
from jaxpar.config.validate import validate
from jaxpar.training.island_jobs.local_weights import LocalWeights
from jaxpar.training.island_jobs.run import ISLAND, IslandRun
from jaxpar.training.run.run import Run
from tests.patience import seconds
from tests.small_run import layout_of, small
from tests.training.island_jobs.runs import TINY, fit_together, island, island_config, weights_of
from tests.training.runs import Recorder, fit, run_config

RATE, MOMENTUM = 0.7, 0.9


class InnerRun(Run):
    """The steps of an island without an exchange."""

    data_seed = IslandRun.data_seed

    def take(self, weights: dict[str, np.ndarray]) -> None:
        """Go on with other weights."""
        local = LocalWeights(self.layout, self.mesh)
        parts, _ = local.parts(self.state.master)
        new = {part: weights[part.name.replace("/", ".")][_slices(part)].astype(np.float32) for part in parts}
        self.state = self.state._replace(master=local.placed(new, self.state.master))


def _slices(part: Any) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in zip(part.starts, part.stops, strict=True))


def inner_run(config: Config) -> InnerRun:
    return InnerRun(config, devices=jax.devices()[: layout_of(config.parallel)])


@pytest.mark.long
def test_jobs_on_other_meshes_are_diloco(tmp_path: Path):
    """The weights of two islands after two rounds, against steps taken apart and the outer update in float64."""
    layouts = {"a": {"fsdp": 2}, "b": {"pipe": 2, "microbatches": 2}}
    configs = [island_config(tmp_path, name, islands={"quorum": 2}, parallel=keys) for name, keys in layouts.items()]
    runs = fit_together(*configs)
    inner = [inner_run(config) for config in configs]
    weights = weights_of(inner[0])
    momentum = {name: np.zeros_like(array) for name, array in weights.items()}
    for _ in range(2):
        for one in inner:
            for _ in range(4):
                one.step()
        after = [weights_of(one) for one in inner]
        for name, before in weights.items():
            gradient = np.mean([before - one[name] for one in after], axis=0)
            momentum[name] = MOMENTUM * momentum[name] + gradient
            weights[name] = before - RATE * (gradient + MOMENTUM * momentum[name])
        for one in inner:
            one.take(weights)
    for run, recorder in runs:
        for name, array in weights_of(run).items():
            np.testing.assert_allclose(array, weights[name], rtol=0, atol=1e-5 * np.abs(weights[name]).max())
        assert [text for text in recorder.messages if "Round" in text] == [
            "Round 0: accepted a, b.", "Round 1: accepted a, b.",
        ]  # fmt: skip
        metrics = recorder.records[-1].metrics or {}
        assert (metrics["outer_round"], metrics["islands_accepted"], metrics["islands_absent"]) == (1, 2, 0)
    first, second = (jax.device_get(weights_of(run)) for run, _ in runs)
    assert all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.long
def test_an_island_that_stops_within_a_round_goes_on_bit_for_bit(tmp_path: Path):
    """Checkpoints within a round and after one; the optimizer's state and the place in the data are the island's."""
    [(peaceful, recorder)] = fit_together(island_config(tmp_path / "peaceful", "a", 12))
    expected, found = {one.step: one.loss for one in recorder.records}, {}
    for steps in (6, 8, 12):
        [(run, recorder)] = fit_together(island_config(tmp_path, "a", steps))
        assert not any("joins" in text for text in recorder.messages)
        found |= {one.step: one.loss for one in recorder.records}
    assert found == expected
    ended, wanted = weights_of(run), weights_of(peaceful)
    assert all(np.array_equal(ended[name], wanted[name]) for name in wanted)


@pytest.mark.long
def test_an_island_that_comes_late_joins_the_newest_round(tmp_path: Path):
    """A checkpoint of an earlier round gives the optimizer's state; the weights are those of the newest outer state."""
    fit_together(island_config(tmp_path, "a", 4), island_config(tmp_path, "b", 4, islands={"quorum": 2}))
    fit_together(island_config(tmp_path, "a", 12))
    [(b, recorder)] = fit_together(island_config(tmp_path, "b", 8))
    assert "This island joins round 3, with the newest outer state." in recorder.messages
    assert b.island.round == 4 and "Round 3: accepted b." in recorder.messages
    [(c, recorder)] = fit_together(island_config(tmp_path, "c", 4))
    assert "This island joins round 4, with the newest outer state." in recorder.messages
    assert c.island.exchange.closed(4).accepted.keys() == {"c"}  # pyright: ignore[reportOptionalMemberAccess]


def stop() -> None:
    signal.raise_signal(signal.SIGTERM)


class Waiting(Recorder):
    """Calls something when the island waits for its quorum; by default this process is told to stop."""

    def __init__(self, then: Callable[[], None] = stop) -> None:
        super().__init__()
        self.then = then

    def message(self, text: str) -> None:
        super().message(text)
        if "waits for 2 islands" in text:
            self.then()


@pytest.mark.long
def test_an_island_stops_while_it_waits_and_goes_on_bit_for_bit(tmp_path: Path):
    """It is saved before the exchange, which comes first when it continues."""
    keys: dict[str, Any] = {"islands": {"quorum": 2, "wait_s": 0.0}}
    peaceful = fit_together(*(island_config(tmp_path / "peaceful", name, **keys) for name in "ab"))
    recorder = Waiting()
    island(island_config(tmp_path, "a", **keys)).fit([recorder])
    assert recorder.messages[-2:] == [
        "Round 0 is open; the same command first waits for it again.",
        "Stopped by SIGTERM after step 4 of 8, which is saved; the same command continues with step 5.",
    ]
    run, waits = island(island_config(tmp_path, "a", **keys)), Event()
    again = Waiting(waits.set)
    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(run.fit, [again])
        assert waits.wait(seconds(60))
        assert not again.records  # no step before the exchange
        [(b, _)] = fit_together(island_config(tmp_path, "b", **keys))
        done.result()
    accepted = [text for text in again.messages if "accepted" in text]
    assert accepted == ["Round 0: accepted a, b.", "Round 1: accepted a, b."]
    for ended, (wanted, _) in zip((weights_of(run), weights_of(b)), peaceful, strict=True):
        assert all(np.array_equal(array, ended[name]) for name, array in weights_of(wanted).items())


@pytest.mark.long
def test_a_stop_in_the_last_round_is_no_end_of_the_run(tmp_path: Path):
    keys: dict[str, Any] = {"islands": {"quorum": 2, "wait_s": 0.0}}
    with pytest.raises(UserError, match=r"stopped while the last round, 0, waited for other islands; the same command"):
        island(island_config(tmp_path, "a", 4, **keys)).fit([Waiting()])
    for run, recorder in fit_together(*(island_config(tmp_path, name, 4, **keys) for name in "ab")):
        assert "Round 0: accepted a, b." in recorder.messages and run.steps_done == 4


def test_islands_draw_rows_of_their_own(tmp_path: Path):
    seeds = {name: IslandRun.data_seed(island_config(tmp_path, name)) for name in ("a", "b", "ab", "ba")}
    assert len(set(seeds.values())) == 4
    assert seeds["a"] == IslandRun.data_seed(island_config(tmp_path / "elsewhere", "a"))


def test_another_model_or_outer_optimizer_is_refused(tmp_path: Path):
    first = island(island_config(tmp_path, "a"))
    first.island.exchange.join(first._agreed)
    with pytest.raises(UserError, match=r"with another configuration \(model.mlp: 8 -> 16\)"):
        island(island_config(tmp_path, "b", model={**TINY["model"], "mlp": 16}))
    with pytest.raises(UserError, match=r"islands.wire: null -> int8"):
        island(island_config(tmp_path, "b", islands={"wire": "int8"}))


@pytest.mark.long
def test_factors_of_other_frozen_weights_are_refused(tmp_path: Path):
    for seed in (1, 2):
        fit(run_config(tmp_path, 1, **TINY, run={"name": f"base{seed}", "seed": seed}))

    def adapted(name: str, base: str):
        init = {"name": name, "init_from": str(tmp_path / base)}
        return island(island_config(tmp_path, name, run=init, lora={"rank": 2, "targets": ("up",)}))

    first = adapted("a", "base1")
    first.island.exchange.join(first._agreed)
    assert adapted("b", "base1")._agreed == first._agreed
    with pytest.raises(UserError, match=r"with another configuration \(run.init_from: "):
        adapted("c", "base2")


def test_the_folder_of_another_run_is_refused(tmp_path: Path):
    run = island(island_config(tmp_path, "a"))
    saved = {ISLAND: {"round": 3, "digest": "0" * 64, "step": 12}}
    with pytest.raises(UserError, match=r"exchange has no such outer state: this run's checkpoint is in round 3"):
        run.provide_reference(Recorder(), (12, saved))
    run.island.start(*run._weights.parts(run.state.master))
    with pytest.raises(UserError, match=r"is the exchange of another run: this run's checkpoint is in round 0"):
        run.provide_reference(Recorder(), (2, {ISLAND: {**saved[ISLAND], "round": 0}}))


def test_two_jobs_of_one_name_are_refused(tmp_path: Path):
    first, second = (island(island_config(tmp_path, "a")) for _ in range(2))
    first._join()
    with pytest.raises(UserError, match=r"is in use by process \d+ on .*choose another run.name"):
        second._join()
    first.close()
    second._join()
    second.close()


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"islands": {"every": 2, "folder": "x", "delay": 1}}, "islands.delay: 1 would not be used, because.* is 'x'"),
        ({"islands": {"every": 2, "quorum": 2}}, "islands.quorum: 2 would not be used, because islands.folder is null"),
        ({"islands": {"every": 2, "folder": "x"}, "run": {"name": ".a"}}, "run.name: '.a' names an island"),
        ({"islands": {"every": 2, "folder": "x"}, "run": {"name": "a.json"}}, "run.name: 'a.json' names an island"),
        ({"islands": {"every": 2, "folder": "a\0b"}}, "islands.folder: "),
        ({"islands": {"folder": "x"}}, "islands.folder: x would not be used, because islands.every is null"),
        ({"islands": {"every": 2, "folder": "x"}, "parallel": {"islands": 2}}, "parallel.islands: 2, and each"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_one_sentence(sections: dict[str, Any], sentence: str):
    with pytest.raises(UserError, match=sentence):
        validate(small(**sections))

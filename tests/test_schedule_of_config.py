"""`python -m jaxpar.schedule --config X --cluster Y`: schedules with the planner's times of a configuration."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxpar.config import load_config
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import Space
from jaxpar.schedule import main
from tests.sentences import refused_by_command

CLUSTER = "h100:1x8"
DENSE = """
model: {layers: 6, embed: 512, heads: 8, kv_heads: 8, mlp: 1024, vocab: 512}
parallel: {pipe: 2, fsdp: 4, zero: 1, microbatches: 8, schedule: 1f1b}
memory: {remat: full}
data: {source: synthetic, sequence_length: 256, batch_size: 32}
"""
EXPERTS = DENSE.replace("vocab: 512", "vocab: 512, experts: {count: 8, per_token: 2, width: 256}").replace(
    "fsdp: 4", "fsdp: 1, expert: 4"
)


@pytest.fixture
def found(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Any:
    """The JSON of the command for a configuration."""

    def run(text: str, *arguments: str) -> dict[str, Any]:
        file = tmp_path / "config.yaml"
        file.write_text(text)
        capfd.readouterr()
        assert main(["--config", str(file), "--cluster", CLUSTER, *arguments, "--json"]) == 0
        return json.loads(capfd.readouterr().out)

    return run


@pytest.mark.parametrize(
    ("text", "axis", "schedule", "virtual"),
    [(DENSE, "fsdp", "1f1b", "1"), (DENSE, "fsdp", "interleaved", "3"), (EXPERTS, "expert", "zb-h1", "1")],
    ids=("dense", "chunks", "experts"),
)
def test_times_are_those_of_the_planner(found: Any, tmp_path: Path, text: str, axis: str, schedule: str, virtual: str):
    """A split backward has also a time of W, which experts shorten."""
    own = found(text, *(f"--set=parallel.{key}" for key in (f"schedule={schedule}", f"virtual_stages={virtual}")))
    fixed = {"pipe": "2", axis: "4", "zero": "1", "microbatch": "1", "remat": "full"}
    fixed |= {"schedule": schedule, "virtual_stages": virtual}
    search = Search(Space(load_config(tmp_path / "config.yaml"), parse_cluster(CLUSTER), fixed))
    layout = search.best(1)[0].candidate.layout
    step = search.timer.step(layout)
    once = search.timer.steps().step(layout).once
    makespan = step.seconds - step.breakdown["stragglers"] - sum(once.values())
    assert own["modes"]["lockstep"]["makespan"] == pytest.approx(1e3 * makespan, rel=5e-3)
    stages = own["stages"], own["microbatches"], own["virtual_stages"]
    assert (own["name"], *stages, own["unit"]) == (schedule, 2, 8, int(virtual), "ms")


def test_bytes_are_those_of_activations(found: Any):
    """With everything recomputed, the inputs of a rank's three layers are kept, in one chunk or in three."""
    own = found(DENSE)
    chunks = found(DENSE, "--set=parallel.schedule=interleaved", "--set=parallel.virtual_stages=3")
    activation = 256 * 512 * 2
    assert own["bytes_sent"] == [8 * activation, 8 * activation]
    assert own["modes"]["async"]["peak_bytes"] == [2 * 3 * activation, 3 * activation]
    assert chunks["modes"]["async"]["peak_bytes"] == [number * activation for number in chunks["peak_in_flight"]]


def test_uneven_experts_take_longer_and_a_typed_time_counts_more(found: Any):
    even = found(EXPERTS)
    uneven = found(EXPERTS, "--set", "parallel.experts.imbalance=2")
    assert uneven["ideal"] > even["ideal"]
    assert uneven["modes"]["async"]["peak_bytes"] == even["modes"]["async"]["peak_bytes"]
    typed = found(EXPERTS, "--forward", "10", "--backward", "20", "--head", "0", "--transfer", "0")
    assert (typed["ideal"], typed["makespan"]) == (8 * 30, 9 * 30)


def test_layers_of_two_kinds_make_chunks_that_differ(found: Any):
    """Three small dense layers on the first rank, three of experts on the second."""
    more = (
        "kinds: {dense: {mlp: 64, experts: null}, routed: {}}, pattern: {prefix: [dense, dense, dense], unit: [routed]}"
    )
    own = found(EXPERTS.replace("layers: 6", f"layers: 6, {more}"))
    alike = found(EXPERTS)
    assert own["bubble_fraction"] > alike["bubble_fraction"], "the first rank waits for the second"


def test_another_schedule_has_the_same_times(found: Any):
    own = found(DENSE, "--compare")
    assert own["gpipe"]["ideal"] == own["1f1b"]["ideal"] == own["interleaved"]["ideal"]
    assert own["1f1b"] == found(DENSE) == found(DENSE, "--name", "1f1b")
    assert own["zb-h1"]["makespan"] < own["1f1b"]["makespan"]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ("pipe=1 fsdp=8 microbatches=4 schedule=auto", ("parallel.pipe: 1", "at least 2", "--set")),
        ("fsdp=8", ("parallel", "16", "8")),
        ("pip=2", ("parallel.pip", "did you mean pipe?")),
        ("--cluster h101:1x8", ("h101", "h100")),
        ("--virtual 2", ("1f1b needs exactly 1 virtual stages",)),
    ],
)
def test_a_mistake_gets_one_sentence(arguments: str, parts: tuple[str, ...], tmp_path, capfd):
    file = tmp_path / "config.yaml"
    file.write_text(DENSE)
    keys = [word for key in arguments.split() for word in ("--set", f"parallel.{key}")]
    given = arguments.split() if arguments.startswith("--") else keys
    status = main(["--config", str(file), "--cluster", CLUSTER, *given])
    refused_by_command(status, *capfd.readouterr(), *parts)


def test_a_table_of_its_own_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    table, file = tmp_path / "mine.csv", tmp_path / "config.yaml"
    assert main(["--name", "1f1b", "--stages", "2", "--microbatches", "8", "--out", str(table)]) == 0
    file.write_text(DENSE.replace("schedule: 1f1b", f"schedule: {table}"))
    capfd.readouterr()
    status = main(["--config", str(file), "--cluster", CLUSTER])
    refused_by_command(status, *capfd.readouterr(), "parallel.schedule", "mine.csv", "--set parallel.schedule=1f1b")

"""`python -m jaxpar.inspect --remat-frontier`, as a user types it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from jaxpar.config import ModelConfig, load_config
from jaxpar.inspect import main
from jaxpar.memory.closed_forms import CLOSED_FORMS
from jaxpar.memory.layer_shape import LayerShape
from jaxpar.memory.remat import layer_runs
from tests.sentences import refused_by_command

LLAMA = Path(__file__).parents[3] / "configs" / "llama3_8b.yaml"
SHAPE = LayerShape(
    ModelConfig(embed=4096, heads=32, kv_heads=8, head_dim=128, mlp=14336), rows=1, sequence=8192, context=1, tensor=1
)


def run(*arguments: Any, config: Path = LLAMA, cluster: str = "h100:1x8") -> int:
    common = "--config", config, "--cluster", cluster, "--remat-frontier"
    return main([str(argument) for argument in (*common, *arguments)])


def found(capfd: pytest.CaptureFixture[str], *arguments: Any, **where: Any) -> dict[str, Any]:
    assert run("--json", *arguments, **where) == 0
    return json.loads(capfd.readouterr().out)


def test_presets_have_the_bytes_of_their_closed_forms(capfd: pytest.CaptureFixture[str]):
    frontier = found(capfd)
    presets = {point["name"]: point for point in frontier["presets"]}
    for name, form in CLOSED_FORMS.items():
        assert presets[name]["layer_bytes"] == form(SHAPE)
        assert presets[name]["total_bytes"] == 32 * form(SHAPE)
    assert presets["none"]["seconds"] == 0
    assert presets["gemm_last"]["time_share"] < 0.04
    assert 0.2 < presets["full"]["time_share"] < 0.33
    # `none` keeps what the kernel behind it recomputes at no cost.
    assert [name for name, point in presets.items() if point["on_front"]] == ["gemm_last", "full"]
    best = frontier["points"][-1]
    assert best["seconds"] == 0 and best["runs"][0][1] == presets["none"]["runs"][0][1] | {"mlp_activated": "recompute"}


def test_the_frontier_falls_in_time_as_bytes_rise(capfd: pytest.CaptureFixture[str]):
    frontier = found(capfd)
    for points in (frontier["points"], frontier["host_points"]):
        sizes, times = [p["total_bytes"] for p in points], [p["seconds"] for p in points]
        assert sizes == sorted(set(sizes))
        assert times == sorted(set(times), reverse=True)
    assert not any(point["host_bytes"] for point in frontier["points"])
    assert sum(frontier["parts"].values()) + frontier["room_bytes"] == frontier["usable_bytes"]


def test_the_cheapest_that_fits_is_printed_as_one_writes_it(capfd: pytest.CaptureFixture[str], tmp_path: Path):
    rows = ("--set", "data.sequence_length=16384")
    assert run(*rows) == 0
    out = capfd.readouterr().out
    assert "are left for activations: full fit" in out
    assert "Nothing was compiled" in out
    assert "\x1b" not in out
    frontier = found(capfd, *rows)
    best = frontier["cheapest"]
    assert best["fits"]
    assert best["seconds"] < next(p["seconds"] for p in frontier["presets"] if p["name"] == "full")
    # What was printed, in a file of its own, keeps what was printed.
    written = out.split("Cheapest that fits:")[1].split("With ")[0].splitlines()[1:]
    lines = [line[2:] for line in written if line.startswith("  ")]
    file = tmp_path / "chosen.yaml"
    file.write_text(LLAMA.read_text() + "\n" + "\n".join(lines) + "\n")
    assert run("--json", *rows, config=file) == 0
    remat = load_config(file, ()).memory.remat
    runs = layer_runs(remat, best["runs"][0][1], 32)
    assert [(one.layers, one.activations) for one in runs] == [(n, own) for n, own in best["runs"]]


def test_the_frontier_of_two_kinds_has_what_the_layers_of_each_do(capfd: pytest.CaptureFixture[str]):
    """Global layers take longer to attend, and so keep their attention where local ones do not."""
    few = (f"model.{key}" for key in ("layers=8", "embed=256", "mlp=1024", "vocab=1024"))
    tight = [f"--set={one}" for one in (*few, "parallel.pipe=2", "parallel.fsdp=4")]
    frontier = found(capfd, *tight, config=LLAMA.with_name("gemma3_1b.yaml"))
    assert frontier["layers"] > 4, "a slot more than a stage has layers"
    sizes, times = zip(*((p["total_bytes"], p["seconds"]) for p in frontier["points"]), strict=True)
    assert list(sizes) == sorted(set(sizes)) and list(times) == sorted(set(times), reverse=True)
    assert all(set(point["kinds"]) == {"local", "global"} for point in frontier["points"])
    again = lambda point, kind: point["kinds"][kind]["attention_output"] == "recompute"
    differ = [(again(p, "local"), again(p, "global")) for p in frontier["points"]]
    assert (True, False) in differ and (False, True) not in differ
    presets = {point["name"]: point for point in frontier["presets"]}
    assert presets["none"]["seconds"] == 0 and presets["full"]["on_front"]


@pytest.mark.long
def test_what_fits_nowhere_is_one_sentence_with_the_nearest_that_does(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    """131,072 tokens on GPUs of 32 GB: there is no table of choices none of which fits."""
    too_long = "--set", "data.sequence_length=131072"
    large_hosts = tmp_path / "large.yaml"
    large_hosts.write_text("gpu: v100-32\nhosts: 1\nhost_memory: 8192\n")
    assert run(*too_long, cluster=str(large_hosts)) == 0
    _, sentence, *after = capfd.readouterr().out.splitlines()
    assert not after
    assert re.match(r"Nothing fits: .* takes \d+\.\d GiB of 27.7 GiB, \d+\.\d GiB too much; ", sentence)
    assert re.search(r"the nearest that fits: memory.*\(about 2\d\.\d\d GiB\); not enough alone: memory", sentence)


@pytest.mark.parametrize("form", ["svg", "png"])
def test_a_picture_is_written_in_either_form(form: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    picture = tmp_path / f"front.{form}"
    assert run("--out", picture) == 0
    assert f"Picture: {picture}" in capfd.readouterr().out
    if form == "svg":
        assert "<svg" in picture.read_text()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--out", "frontier.jpg"], "--out frontier.jpg: expected a name that ends in .svg or .png"),
        (["--diff", "other.yaml"], "--diff: expected no --remat-frontier with it"),
        (["--set", "memory.remat={mlp_upp: offload}"], "mlp_upp"),
        (["--cluster", "b200:1x8", "--set", "memory.offload_fraction=1.0"], "memory.offload_fraction: 1"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], expected: str, capfd: pytest.CaptureFixture[str]):
    refused_by_command(run(*arguments), *capfd.readouterr(), expected)

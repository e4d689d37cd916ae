"""`calibrate`: what is measured is written, later plans read it, and a profile that is none is one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jaxpar.config import config_to_yaml
from jaxpar.cost.hardware_model import HOPPER, HardwareModel
from jaxpar.hardware.cluster import Cluster, parse_cluster
from jaxpar.plan import main
from jaxpar.planner.evidence.calibrate import Sizes, calibrate
from jaxpar.planner.machine import named_cluster
from jaxpar.planner.profile import read_profile, write_profile
from tests.sentences import refused, refused_by_command
from tests.small_run import small

TINY = Sizes(
    matmuls=((64, 64, 64), (128, 128, 128)), lengths=(64,), messages=(2**10, 2**14), traffic=2**12, width=16,
    layers=(1, 2),
)  # fmt: skip
PROFILE: dict[str, Any] = {
    "device": "cpu",
    "devices": 8,
    "model": {"matmul_share": 0.5, "message_seconds": 1e-3},
    "links": {"peak_flops": 8e9, "memory_bandwidth": 4e9, "node_bandwidth": 2e9, "node_latency": 1e-4},
}


def read_back(folder: Path, profile: dict[str, Any], cluster: str) -> tuple[HardwareModel, Cluster]:
    """What a profile says of a cluster."""
    write_profile(folder / "hardware.json", profile)
    return read_profile(folder / "hardware.json", named_cluster(cluster))


@pytest.mark.long
def test_what_is_measured_changes_the_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file, output = tmp_path / "hardware.json", tmp_path / "plan.json"
    config = tmp_path / "small.yaml"
    config.write_text(config_to_yaml(small()))
    profile = calibrate(file, 8, TINY)
    assert json.loads(file.read_text()) == profile
    assert {one["collective"] for one in profile["measured"]["collectives"]} == {
        "all_gather", "reduce_scatter", "all_reduce",
    }  # fmt: skip
    assert all(span > 0 for span in (*profile["model"].values(), *profile["links"].values()))
    capsys.readouterr()

    def predicted(*more: str) -> float:
        words = ["--config", str(config), "--cluster", "cpu:1x8", "--top", "1", "--output", str(output), "--json"]
        assert main([*words, *more]) == 0
        return json.loads(capsys.readouterr().out)[0]["predicted"]["step_time_s"]

    slower = tmp_path / "slower.json"
    slower.write_text(json.dumps(profile | {"links": profile["links"] | {"peak_flops": 1e6}}))
    nominal, measured, slow = predicted(), predicted("--profile", str(file)), predicted("--profile", str(slower))
    assert nominal != measured
    assert measured < slow


def test_devices_of_one_cpu_share_what_was_measured(tmp_path: Path):
    """Half as many devices have twice as much each; shares stand in for the guesses."""
    model, cluster = read_back(tmp_path, PROFILE, "cpu:1x4")
    assert (model.matmul_share, model.message_seconds) == (0.5, 1e-3)
    assert cluster.gpu.training_peak == 16e9
    assert cluster.gpu.hbm_bandwidth == 8e9
    assert (cluster.bandwidth(False), cluster.latency(False)) == (4e9, 1e-4)


def test_a_gpu_keeps_its_datasheet(tmp_path: Path):
    model, cluster = read_back(tmp_path, PROFILE | {"device": "NVIDIA H100 80GB HBM3"}, "h100:2x8")
    assert model.matmul_share == 0.5 != HOPPER.matmul_share
    assert model.attention_share == HOPPER.attention_share
    assert cluster == parse_cluster("h100:2x8")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "not a profile of python -m jaxpar.plan calibrate"),
        ("[]", "device and devices and model and links missing"),
        (json.dumps(PROFILE | {"device": "NVIDIA H100 80GB HBM3"}), "measured on NVIDIA H100 80GB HBM3"),
        (json.dumps(PROFILE | {"model": 3}), "model: expected names and numbers, got 3"),
        (json.dumps(PROFILE | {"model": {"matmul_share": "fast"}}), "model.matmul_share: expected a number above 0"),
        (json.dumps(PROFILE | {"links": {}}), "links: peak_flops and memory_bandwidth and node_bandwidth and"),
        (json.dumps(PROFILE | {"links": PROFILE["links"] | {"peak_flops": 0}}), "links.peak_flops: expected a number"),
        (json.dumps(PROFILE | {"devices": 0}), "devices: expected a number above 0, got 0"),
    ],
)
def test_a_profile_that_is_none_is_one_sentence(tmp_path: Path, text: str, expected: str):
    file = tmp_path / "hardware.json"
    file.write_text(text)
    with refused(str(file), expected):
        read_profile(file, named_cluster("cpu:1x8"))


def test_where_nothing_can_be_written_nothing_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    status = main(["calibrate", "--output", str(tmp_path / "nowhere" / "x.json")])
    refused_by_command(status, *capsys.readouterr(), "the profile cannot be written")

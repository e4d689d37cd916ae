"""Profiles: what was measured replaces what is fitted, and a file that is none is one sentence."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from jaxpar.cost.hardware_model import HOPPER, HardwareModel
from jaxpar.cost.tables import Row, Table
from jaxpar.hardware.cluster import Cluster, parse_cluster
from jaxpar.planner.machine import named_cluster
from jaxpar.planner.profile import Attended, Product, Profile, Sent, read_profile, write_profile
from tests.sentences import refused

H100 = "NVIDIA H100 80GB HBM3"
PROFILE = Profile(
    device="cpu",
    devices=8,
    date="2026-11-27",
    versions={"jax": "0.11.2"},
    model={"matmul_share": 0.5, "message_seconds": 1e-3},
    links={"peak_flops": 8e9, "memory_bandwidth": 4e9, "node_bandwidth": 2e9, "node_latency": 1e-4},
    matmuls=(Product(64, 32, 16, "float32", 1e-3), Product(64, 32, 16, "bfloat16", 2e-3, adds=True)),
    attention=(Attended("xla", "float32", 64, 4, 2, 8, 32.5, 1e-3, 2e-3),),
    collectives=(Sent("reduce_scatter", 8, 1, 1024, 1e-4), Sent("permute", 2, 1, 1024, 1e-5)),
)
PLAIN: dict[str, Any] = json.loads(json.dumps(asdict(PROFILE)))


def read_back(folder: Path, profile: Profile, cluster: str) -> tuple[HardwareModel, Cluster]:
    """What a profile says of a cluster."""
    write_profile(folder / "hardware.yaml", profile)
    model, linked, read = read_profile(folder / "hardware.yaml", named_cluster(cluster))
    assert read == profile
    return model, linked


def test_devices_of_one_cpu_share_what_was_measured(tmp_path: Path):
    """Half as many devices have twice as much each; shares stand in for the guesses."""
    model, cluster = read_back(tmp_path, PROFILE, "cpu:1x4")
    assert (model.matmul_share, model.message_seconds) == (0.5, 1e-3)
    assert cluster.gpu.training_peak == 16e9
    assert cluster.gpu.hbm_bandwidth == 8e9
    assert (cluster.bandwidth(False), cluster.latency(False)) == (4e9, 1e-4)
    assert model.measured.rows == {
        Table("matmul", (4, False)): [Row((64, 32, 16), 4e-3)],
        Table("matmul", (2, True)): [Row((64, 32, 16), 8e-3)],
        Table("attention forward", (8, 4)): [Row((32.5,), 4e-3 / (4 * 64))],
        Table("attention backward", (8, 4)): [Row((32.5,), 8e-3 / (4 * 64))],
        Table("gather", (8, 1)): [Row((1024,), 1e-4)],  # all devices took part in messages
        Table("permute", (2, 1)): [Row((1024,), 1e-5)],
    }


def test_a_gpu_keeps_its_datasheet_and_has_the_measured_link_to_its_host(tmp_path: Path):
    profile = replace(PROFILE, device=H100, links={})
    model, cluster = read_back(tmp_path, profile, "h100:2x8")
    assert model.matmul_share == 0.5 != HOPPER.matmul_share
    assert model.attention_share == HOPPER.attention_share
    assert model.measured.rows[Table("matmul", (4, False))] == [Row((64, 32, 16), 1e-3)]
    assert cluster == parse_cluster("h100:2x8")
    _, linked = read_back(tmp_path, replace(profile, links={"host_bandwidth": 3e10}), "h100:2x8")
    assert linked.host_bandwidth == 3e10
    assert linked.bandwidth(False) == cluster.bandwidth(False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "not valid YAML"),
        ("", "device and devices and model and links missing"),
        (json.dumps(PLAIN | {"matmul": []}), "matmul: no such key; did you mean matmuls?"),
        (json.dumps(PLAIN | {"device": H100}), f"measured on {H100}"),
        (json.dumps(PLAIN | {"model": {"matmul_share": "fast"}}), "model.matmul_share: expected a number, got 'fast'"),
        (json.dumps(PLAIN | {"links": {}}), "links: peak_flops and memory_bandwidth and node_bandwidth and"),
        (json.dumps(PLAIN | {"matmuls": [{"m": 1}]}), "matmuls[0]: the key n is missing"),
        (
            json.dumps(PLAIN | {"matmuls": [PLAIN["matmuls"][0] | {"dtype": "bf16"}]}),
            "dtype: expected float32, bfloat16",
        ),
        (
            json.dumps(PLAIN | {"collectives": [PLAIN["collectives"][0] | {"collective": "all_gathr"}]}),
            "did you mean all_gather?",
        ),
    ],
)
def test_a_profile_that_is_none_is_one_sentence(tmp_path: Path, text: str, expected: str):
    file = tmp_path / "hardware.yaml"
    file.write_text(text)
    with refused(str(file), expected):
        read_profile(file, named_cluster("cpu:1x8"))

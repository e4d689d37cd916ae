"""The configurations that come with jaxpar load, fit together and say what their names say."""

import itertools
import re
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

from jaxpar.config import load_config, virtual_devices_needed
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layers.counting import parameter_count
from jaxpar.layout.checks.validate import validate

FOLDER = Path(__file__).parents[2] / "configs"

# name: devices, tokens per step, parameters in millions (published shape, learned positions included)
GOLDEN = {
    "deepseek_v3": (128, 4_194_304, 671_026), "dpo": (8, 32_768, 135), "kto": (8, 32_768, 135),
    "gemma3_1b": (8, 1_048_576, 1000), "gpt2_124m": (8, 524_288, 124), "gpt3_175b_32k": (256, 4_194_304, 174_982),
    "llama3_1b": (8, 524_288, 1236), "llama3_405b": (1024, 16_777_216, 405_853), "llama3_70b": (256, 4_194_304, 70_554),
    "llama3_8b": (8, 524_288, 8030), "lora": (8, 524_288, 8030), "qwen3_30b_a3b": (16, 4_194_304, 30_532),
    "qwen3_0p6b": (8, 524_288, 596), "sft": (8, 65_536, 135),
}  # fmt: skip
OTHERS = (
    "quickstart", "quickstart_experts", "quickstart_hybrid", "grpo_digits", "grpo_json", "grpo_json_sft",
    "long_context",
)  # fmt: skip


def test_every_configuration_is_covered():
    assert {path.stem for path in FOLDER.glob("*.yaml")} == {*GOLDEN, *OTHERS}


@pytest.mark.parametrize("name", [*GOLDEN, *OTHERS])
def test_a_configuration_loads_and_validates(name):
    validate(load_config(FOLDER / f"{name}.yaml"))


@pytest.mark.parametrize("name", GOLDEN)
def test_a_configuration_is_for_the_devices_batch_and_model_it_names(name):
    config = load_config(FOLDER / f"{name}.yaml")
    devices, tokens, millions = GOLDEN[name]
    assert virtual_devices_needed(config.parallel) == devices
    assert config.data.batch_size * config.data.sequence_length == tokens
    assert round(parameter_count(config.model, padded=False) / 1e6) == millions


def test_any_layout_of_eight_devices_runs_the_quickstart():
    config = load_config(FOLDER / "quickstart.yaml")
    axes = ("replica", "fsdp", "expert", "context", "tensor")
    layouts = [sizes for sizes in itertools.product((1, 2, 4, 8), repeat=5) if prod(sizes) == 8]
    assert len(layouts) == 35
    for sizes in layouts:
        validate(replace(config, parallel=replace(config.parallel, **dict(zip(axes, sizes, strict=True)))))


@pytest.mark.parametrize("name", GOLDEN)
def test_the_planners_command_in_a_configuration_is_for_its_devices(name: str):
    text = (FOLDER / f"{name}.yaml").read_text()
    clusters = re.findall(rf"^#   python -m jaxpar\.plan --config configs/{name}\.yaml --cluster (\S+)", text, re.M)
    assert clusters or name in ("sft", "dpo", "kto"), "these run on whatever there is"
    assert all(parse_cluster(cluster).devices == GOLDEN[name][0] for cluster in clusters)

"""`python -m jaxpar.models`: the families that are known, and a configuration that begins with a model's weights."""

from dataclasses import replace
from pathlib import Path

import pytest

from jaxpar.config import load_config
from jaxpar.interop.config_json import differences
from jaxpar.interop.families.registry import FAMILIES
from jaxpar.interop.sources.hf_folder import HFFolder
from jaxpar.layout.checks.validate import validate
from jaxpar.models import main
from tests.goldens.loading import BIDIRECTIONAL, FOLDER, NAMES
from tests.interop.folders import copy_of, rewrite, tensors
from tests.sentences import refused, refused_by_command


def test_every_family_has_a_line(capfd: pytest.CaptureFixture[str]):
    assert main([]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [family.model_type for family in FAMILIES.values()]


@pytest.mark.matrix(quick=("gemma3", "gpt2", "qwen3_next"), ci=4)
@pytest.mark.parametrize("name", NAMES)
def test_what_it_prints_is_a_configuration_for_the_model(name: str, capfd: pytest.CaptureFixture[str], tmp_path: Path):
    assert main([str(FOLDER / name)]) == 0
    file = tmp_path / "begin.yaml"
    file.write_text(capfd.readouterr().out)
    config = load_config(file)
    assert config.run.init_from == str(FOLDER / name)
    assert differences(config.model, HFFolder(FOLDER / name).model) == []
    if name in BIDIRECTIONAL:  # The number of the mask token is the tokenizer's.
        with refused("loss.mask_token: null"):
            validate(config)
        config = replace(config, loss=replace(config.loss, mask_token=3))
    validate(config)


def test_the_key_that_is_not_supported_is_named(capfd: pytest.CaptureFixture[str], tmp_path: Path):
    folder = copy_of("llama", tmp_path / "model", rope_parameters={"rope_type": "longrope"})
    refused_by_command(main([str(folder)]), *capfd.readouterr(), "config.json", "rope_parameters.rope_type", "longrope")


def test_a_head_that_differs_from_the_embedding_is_told(capfd: pytest.CaptureFixture[str], tmp_path: Path):
    folder = copy_of("qwen3", tmp_path / "model")
    rewrite(folder, {"lm_head.weight": tensors(folder)["model.embed_tokens.weight"] * 2})
    assert main([str(folder)]) == 0
    printed = capfd.readouterr().out
    assert "tied: true" not in printed and "lm_head.weight differs from the embedding" in printed


def test_the_text_part_of_a_model_that_takes_images_is_described(capfd: pytest.CaptureFixture[str]):
    assert main([str(FOLDER / "multimodal/mistral3")]) == 0
    printed = capfd.readouterr().out
    assert "mistral in Hugging Face's format" in printed and "tensors of images, multi_modal_projector" in printed


def test_the_weights_are_not_needed(capfd: pytest.CaptureFixture[str], tmp_path: Path):
    folder = copy_of("gpt2", tmp_path / "model")
    (folder / "model.safetensors").unlink()
    assert main([str(folder)]) == 0
    assert "position: learned" in capfd.readouterr().out
    refused_by_command(main([str(tmp_path)]), *capfd.readouterr(), "MODEL", "holds no model")
    (folder / "config.json").unlink()
    (folder / "model.safetensors").touch()
    refused_by_command(main([str(folder)]), *capfd.readouterr(), "MODEL", "has no config.json")

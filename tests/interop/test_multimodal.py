"""The text part of a model that takes images too is read, and what is left out is said."""

import json
from pathlib import Path

import numpy as np
import pytest

from jaxpar.config.presets import PRESETS
from jaxpar.convert import main
from jaxpar.interop.config_json import differences, model_of
from jaxpar.interop.conversion.export import plan_export
from jaxpar.interop.families.registry import FAMILIES
from jaxpar.interop.mapping.keys import HFConfig
from jaxpar.interop.mapping.multimodal import MULTIMODAL, text_part
from jaxpar.interop.sources.hf_folder import HFFolder
from tests.goldens.loading import FOLDER
from tests.interop.folders import copy_of, rewrite, tensors
from tests.model.test_goldens import compare
from tests.sentences import refused

NAMES = tuple(sorted(path.parent.name for path in FOLDER.glob("multimodal/*/config.json")))
GEMMA3_4B = {
    # as released: the text part states what differs from the class's defaults of then
    "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999, "eoi_token_index": 256000,
    "eos_token_id": [1, 106], "image_token_index": 262144, "initializer_range": 0.02, "mm_tokens_per_image": 256,
    "model_type": "gemma3", "torch_dtype": "bfloat16", "vision_config": {"model_type": "siglip_vision_model"},
    "text_config": {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
    },
}  # fmt: skip


def test_a_golden_for_each_kind_but_those_alike():
    assert set(NAMES) == set(MULTIMODAL) - {"qwen3_5_moe"}


@pytest.mark.matrix(quick=("mistral3",), ci=2)
@pytest.mark.parametrize("name", NAMES)
def test_logits_of_text_equal_those_of_transformers(name: str):
    compare(f"multimodal/{name}", {})


@pytest.mark.parametrize("name", NAMES)
def test_what_is_left_out_is_said_and_the_rest_is_exported_as_a_model_of_text(name: str, tmp_path, capfd):
    folder = FOLDER / "multimodal" / name
    source, stored = HFFolder(folder), tensors(folder)
    (remark,) = source.remarks
    assert len(source.left_out) + len(source.tensors) == len(stored)
    assert remark.startswith(f"without {len(source.left_out)} tensors of images, ")
    assert not [one for one in source.left_out if "language_model" in one or "lm_head" in one]
    assert main(["hf-to-jaxpar", str(folder), str(tmp_path / "ours")]) == 0
    assert main(["jaxpar-to-hf", str(tmp_path / "ours"), str(tmp_path / "text")]) == 0
    assert json.loads((tmp_path / "text/config.json").read_text())["architectures"] == [source.family.architecture]
    assert "this is the text part alone" in capfd.readouterr().out, "images are not in the folder that was converted"
    again = HFFolder(tmp_path / "text")
    assert differences(again.model, source.model) == [] and again.remarks == []
    for tensor in source.tensors:
        np.testing.assert_array_equal(again.tensor(tensor), source.tensor(tensor))


@pytest.mark.parametrize("name", NAMES)
def test_an_export_of_a_folder_with_images_carries_them(name: str, tmp_path: Path):
    folder = FOLDER / "multimodal" / name
    assert main(["jaxpar-to-hf", str(folder), str(tmp_path / "out")]) == 0
    for file in ("config.json", "generation_config.json", "model.safetensors"):
        assert (tmp_path / "out" / file).read_bytes() == (folder / file).read_bytes(), file


def test_a_head_of_its_own_goes_to_the_text_part_in_several_files(tmp_path: Path):
    """Models with tied embeddings have none, so that the model, its keys and the names of its tensors are new."""
    folder = copy_of("multimodal/gemma3", tmp_path / "model")
    (folder / "preprocessor_config.json").write_text("{}")
    head = tensors(folder)["language_model.model.embed_tokens.weight"] * 2
    source = HFFolder(rewrite(folder, {"language_model.lm_head.weight": head}))
    assert source.untied and len(source.remarks) == 2
    (tmp_path / "out").mkdir()
    files = plan_export(source).write(tmp_path / "out", shard_bytes=8000)
    written = {name: leaf for file in files for name, leaf in tensors(file).items()}
    assert len(files) > 1 and written.keys() == tensors(folder).keys()
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(leaf.nbytes for leaf in written.values())
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert (config["tie_word_embeddings"], config["model_type"]) == (False, "gemma3")
    again = HFFolder(tmp_path / "out")
    assert differences(again.model, source.model) == [] and len(again.remarks) == 1
    np.testing.assert_array_equal(written["language_model.lm_head.weight"], head)
    assert (tmp_path / "out/preprocessor_config.json").exists()


def test_a_published_file_lacks_keys_that_transformers_fills_in():
    classes = {family.model_type: family.architecture for family in FAMILIES.values()}
    _, model = model_of(text_part(HFConfig("config.json", GEMMA3_4B), classes))
    assert differences(model, PRESETS["gemma3-4b"]) == []


def test_a_text_part_of_another_family_is_refused(tmp_path: Path):
    folder = copy_of("multimodal/llava", tmp_path / "model", text_config={"model_type": "vicuna"})
    with refused("config.json", "model_type", "vicuna"):
        HFFolder(folder)

"""Adapters of experts in PEFT's format: factors of arrays of experts (`target_parameters`), and of single experts."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxpar.interop.adapters.open_adapter import open_adapter
from jaxpar.interop.sources.hf_folder import HFFolder
from tests.goldens.loading import FOLDER
from tests.interop.peft_adapters import changed, products, with_tensors
from tests.sentences import refused


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "gpt_oss"])
def test_factors_of_arrays_of_experts_add_what_peft_adds(name: str):
    """`target_parameters`: both arrays of a module, with a pattern of scales, and where gate and up take turns."""
    folder = FOLDER / "peft_experts" / name
    adapter = open_adapter(folder, HFFolder(FOLDER / name), "--adapter")
    assert adapter.rank == 2 and any(weight == "layers.attention.query" for weight, _ in adapter.factors)
    made = products(adapter)
    with np.load(folder / "deltas.npz") as deltas:
        assert len(deltas.files) == 4
        for key, delta in deltas.items():
            layer = int(key.split(".")[2])
            delta = delta if name == "gpt_oss" else delta.swapaxes(1, 2)
            if key.endswith("down_proj"):
                parts = {"down": delta}
            elif name == "gpt_oss":
                parts = {"gate": delta[..., ::2], "up": delta[..., 1::2]}
            else:
                parts = dict(zip(("gate", "up"), np.split(delta, 2, axis=2), strict=True))
            for weight, part in parts.items():
                np.testing.assert_allclose(made[f"layers.mlp.{weight}", layer], part, atol=1e-5)


def test_arrays_of_experts_whose_factors_are_of_others_are_refused(tmp_path: Path):
    exported, base = tmp_path / "from", HFFolder(FOLDER / "qwen2_moe")
    shutil.copytree(FOLDER / "peft_experts/qwen3_moe", exported / "peft")
    only = lambda all: {name: value for name, value in all.items() if ".experts." in name}
    with refused("--adapter", "experts.gate_up_proj", "[6 x rank, 32]", "as PEFT 0.19"):
        open_adapter(with_tensors(exported, tmp_path / "narrow", only), base, "--adapter")
    targets = {"target_parameters": ["mlp.router"]}
    with refused("target_parameters is ['mlp.router']", "gate_up_proj"):
        open_adapter(changed(exported, tmp_path / "other", **targets), HFFolder(FOLDER / "qwen3_moe"), "--adapter")
    with refused("--adapter", "experts.base_layer", "no matrix for it"):
        targets = {"target_parameters": ["experts.down_proj"]}
        open_adapter(changed(exported, tmp_path / "one", **targets), HFFolder(FOLDER / "qwen3_moe"), "--adapter")
    (tmp_path / "lacks").mkdir()
    config = {"peft_type": "LORA", "lora_alpha": 1, "target_parameters": ["experts.gate_up_proj"]}
    (tmp_path / "lacks/adapter_config.json").write_text(json.dumps(config))
    module = "base_model.model.backbone.layers.1.mixer.experts"
    factors = {f"{module}.lora_{which}.weight": np.ones((6, 6), np.float32) for which in "AB"}
    save_file(factors, tmp_path / "lacks/adapter_model.safetensors")
    with refused("--adapter", "mixer.experts.gate_up_proj", "which this model lacks"):
        open_adapter(tmp_path / "lacks", HFFolder(FOLDER / "nemotron_h"), "--adapter")
    with refused("--adapter", "mixer.experts", "no matrix for it"):
        open_adapter(tmp_path / "lacks", HFFolder(FOLDER / "starcoder2"), "--adapter")
    of_array = {
        f"{LAYER}.mlp.experts.down_proj.lora_{which}.weight": np.ones(shape, np.float32)
        for which, shape in (("A", (2, 20)), ("B", (32, 2)))
    }
    with refused("--adapter", "experts.down_proj.lora_A", "no matrix for it"):
        folder = with_tensors(exported, tmp_path / "array", lambda all: of_array)
        open_adapter(folder, HFFolder(FOLDER / "gpt_oss"), "--adapter")
    square = {
        f"base_model.model.model.layers.0.mlp.experts.lora_{which}.weight": np.ones(shape, np.float32)
        for which, shape in (("A", (12, 32)), ("B", (32, 12)))
    }
    for number, (version, known) in enumerate({"0.18.1": False, None: False, "0.19.0": True}.items()):
        keys = {"target_parameters": ["experts.gate_up_proj"], "peft_version": version}
        folder = with_tensors(exported, tmp_path / f"square{number}", lambda all: square, **keys)
        if known:
            assert open_adapter(folder, base, "--adapter").rank == 2
            continue
        with refused("as many inputs as outputs", "peft_version 0.19"):
            open_adapter(folder, base, "--adapter")


def renamed(old: str, new: str) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """The tensors of a module under the name of another one."""
    return lambda all: {name.replace(old, new): value for name, value in all.items() if old in name}


LAYER = "base_model.model.model.layers.1"


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (renamed("model.layers.1.mlp.", "mtp.layers.1.mlp."), ("mtp.layers.1.mlp.experts", "no matrix for it")),
        (renamed("model.layers.1.mlp.", "model.layers.1.foo."), ("layers.1.foo.experts", "no matrix for it")),
        (renamed("model.layers.1.mlp.", f"{'b' * 3000}.layers.1.mlp."), ("bbb", "no matrix for it")),
        (lambda all: {f"{LAYER}.mlp.experts.1.gate_proj.lora_{which}.weight": np.ones(shape, np.float32)
                      for which, shape in (("A", (2, 16)), ("B", (20, 2)))}, ("mlp.gate of layer 1 twice", "expected")),
    ],
)  # fmt: skip
def test_experts_have_factors_of_one_module_with_the_name_that_they_have(change, parts, tmp_path):
    """Others are refused before the patterns of scales, whose time grows with the length of a name."""
    shutil.copytree(FOLDER / "peft_experts/qwen3_moe", tmp_path / "from/peft")
    patterns = {".*.*.*!": 4.0}
    folder = with_tensors(tmp_path / "from", tmp_path / "to", lambda all: all | change(all), alpha_pattern=patterns)
    with refused("--adapter", *parts):
        open_adapter(folder, HFFolder(FOLDER / "qwen3_moe"), "--adapter")

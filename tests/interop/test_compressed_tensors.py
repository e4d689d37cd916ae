"""Exports in FP8 with a scale for each matrix, in the format `compressed-tensors`, and their way back."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxpar.convert import main
from jaxpar.interop.conversion.compressed_tensors import quantization_config, quantize, quantized_names
from jaxpar.interop.mapping.family import tensors_of
from jaxpar.interop.sources.compressed_tensors import CompressedFiles
from jaxpar.interop.sources.hf_folder import HFFolder
from jaxpar.precision import scale as run_scale
from jaxpar.precision.recipe import E4M3
from tests.goldens.loading import FOLDER
from tests.interop.folders import tensors
from tests.sentences import refused, refused_by_command
from tests.small_run import small

GOLDEN = FOLDER / "qwen3"
QUERY = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compressed") / "out"
    arguments = ["jaxpar-to-hf", str(GOLDEN), str(folder), "--dtype", "bfloat16", "--format", "compressed-tensors"]
    assert main(arguments) == 0
    return folder


def test_matrices_of_layers_are_codes_with_a_scale_and_the_others_are_not(exported: Path):
    before, files = tensors(GOLDEN), CompressedFiles(exported)
    stored, matrices = files._stored, [name for name in before if "_proj.weight" in name]
    assert set(stored) == set(before) | {f"{name}_scale" for name in matrices} and len(matrices) == 7 * 2
    for name, value in before.items():
        whole = tuple(slice(0, size) for size in value.shape)
        found = files.read(name, whole).astype(np.float64)
        if name not in matrices:
            np.testing.assert_array_equal(found, value.astype(ml_dtypes.bfloat16).astype(np.float64))
            continue
        assert stored[name].dtype == ml_dtypes.float8_e4m3fn and stored[f"{name}_scale"].shape == (1,)
        most = np.abs(value).max()
        step = 2.0 ** np.ceil(np.log2(most / 448)) * 2.0**-10
        assert (np.abs(found - value) <= np.abs(value) * 2.0**-4 + step).all() and (found != value).any()
    config = json.loads((exported / "config.json").read_text())["quantization_config"]
    (group,) = config["config_groups"].values()
    assert (config["quant_method"], config["format"]) == ("compressed-tensors", "float-quantized")
    assert group["weights"] == {
        "num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False,
    }  # fmt: skip
    assert group["input_activations"]["dynamic"] is True and group["targets"] == ["Linear"]
    assert config["ignore"] == ["lm_head"] * ("lm_head.weight" in before)


def test_an_export_is_read_as_bfloat16_and_written_as_what_was_read(exported: Path, tmp_path: Path):
    assert main(["hf-to-jaxpar", str(exported), str(tmp_path / "ours")]) == 0
    assert main(["jaxpar-to-hf", str(tmp_path / "ours"), str(tmp_path / "again")]) == 0
    again, source = tensors(tmp_path / "again"), HFFolder(exported)
    for tensor in source.tensors:
        np.testing.assert_array_equal(again[tensor.name], source.tensor(tensor))
    assert again[QUERY].dtype == ml_dtypes.bfloat16
    assert "quantization_config" not in json.loads((tmp_path / "again/config.json").read_text())


@pytest.mark.parametrize("shape", [(), (1,), (6, 1)])
def test_a_scale_may_be_one_number_or_one_for_each_output(shape: tuple[int, ...], tmp_path: Path):
    generator = np.random.default_rng(0)
    codes = generator.standard_normal((6, 4)).astype(ml_dtypes.float8_e4m3fn)
    scale = np.asarray(2.0 ** generator.uniform(-3, 3, shape), np.float32)
    save_file({"w.weight": codes, "w.weight_scale": scale, "w.input_scale": scale}, tmp_path / "model.safetensors")
    files = CompressedFiles(tmp_path)
    assert set(files.tensors) == {"w.weight"}
    product = codes.astype(np.float32) * (scale if scale.ndim == 2 else scale.reshape(1, 1))
    np.testing.assert_array_equal(
        files.read("w.weight", (slice(2, 5), slice(1, 3))), product[2:5, 1:3].astype(ml_dtypes.bfloat16)
    )


@pytest.mark.parametrize("largest", [1e-44, 1e-30, 3e-5, 0.75, 447.9, 448.0, 449.0, 3e38, 0.0])
def test_a_scale_is_the_least_power_of_two_by_which_a_matrix_fits_and_that_of_a_run(largest: float):
    values = np.asarray([[largest, -largest / 3]], np.float32)
    codes, (scale,) = quantize(values)
    assert scale == run_scale.scale_of(np.abs(values).max(), E4M3) and np.isfinite(codes.astype(np.float32)).all()
    if 1e-30 < largest < 1e38:  # beyond these, scales have limits
        assert scale == 2.0 ** np.ceil(np.log2(np.float64(np.float32(largest)) / 448))
    in_a_run = np.asarray(run_scale.quantize(values, scale, E4M3)).astype(np.float32)
    np.testing.assert_array_equal(codes.astype(np.float32), in_a_run)


def test_a_run_with_fp8_matmuls_has_the_same_exceptions_in_its_export():
    config = small(model={"layers": 3, "embed": 64, "mlp": 128}, precision={"matmul": "fp8_delayed"})
    source: Any = SimpleNamespace(model=config.model, config=config)
    family = HFFolder(FOLDER / "llama").family
    table = tensors_of(family, config.model)
    found = quantized_names(source, family, table)
    parts = ("self_attn.q", "self_attn.k", "self_attn.v", "mlp.gate", "mlp.up", "mlp.down")
    assert found == {f"model.layers.1.{part}_proj.weight" for part in parts}
    ignored = quantization_config(table, found)["ignore"]
    assert "model.layers.1.self_attn.o_proj" in ignored and "model.layers.0.mlp.up_proj" in ignored
    assert "lm_head" in ignored and not any("norm" in name or "embed" in name for name in ignored)
    source.config = replace(config, precision=replace(config.precision, matmul=None))
    assert len(quantized_names(source, family, table)) == 7 * 3


@pytest.mark.parametrize(
    ("weights", "parts"),
    [
        ({"num_bits": 4}, ("weights.num_bits", "4", "8")),
        ({"strategy": "block"}, ("weights.strategy", "block", "tensor or channel")),
    ],
)
def test_what_is_packed_otherwise_is_refused(weights: dict[str, Any], parts: tuple[str, ...], exported: Path, tmp_path):
    folder = shutil.copytree(exported, tmp_path / "changed")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["config_groups"]["group_0"]["weights"] |= weights
    (folder / "config.json").write_text(json.dumps(config))
    with refused(*parts):
        HFFolder(folder)


def test_a_matrix_without_a_scale_is_refused(tmp_path: Path):
    save_file({"w.weight": np.ones((6, 4), ml_dtypes.float8_e4m3fn)}, tmp_path / "model.safetensors")
    with refused("w.weight", "missing", "one scale or one for each output"):
        CompressedFiles(tmp_path)


@pytest.mark.parametrize(("arguments", "parts"), [
    (["gpt2", "OUT"], ("--format", "gpt2", "without --format")),
    (["qwen3", "--check"], ("--check", "without --format", "rounds")),
])  # fmt: skip
def test_an_export_that_cannot_be_is_one_sentence(arguments: list[str], parts: tuple[str, ...], tmp_path, capfd):
    model, out = str(FOLDER / arguments[0]), arguments[1].replace("OUT", str(tmp_path / "out"))
    status = main(["jaxpar-to-hf", model, out, "--format", "compressed-tensors"])
    refused_by_command(status, *capfd.readouterr(), *parts)

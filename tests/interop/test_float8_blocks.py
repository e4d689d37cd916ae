"""Matrices in blocks of float8 are read as bfloat16, whole and by parts; layers for further tokens are left out."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

from jaxpar.convert import main
from jaxpar.interop.conversion.export import plan_export
from jaxpar.interop.conversion.round_trip import check_export
from jaxpar.interop.sources.float8_blocks import Float8Files
from jaxpar.interop.sources.hf_folder import HFFolder
from tests.goldens.loading import FOLDER
from tests.interop.folders import check_parts, tensors
from tests.sentences import refused

GOLDEN = FOLDER / "deepseek_v3"
NAME = "model.layers.1.self_attn.q_b_proj.weight"
SHAPE = (300, 200)
"""Two blocks and a part of one, and one and a part."""


def matrix(generator: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Codes of every value but NaN, and scales over many orders of magnitude."""
    codes = generator.integers(0, 254, shape, np.uint8)
    codes[codes == 127] = 126
    blocks = tuple(-(-size // 128) for size in shape)
    return codes.view(ml_dtypes.float8_e4m3fn), (2.0 ** generator.uniform(-30, 10, blocks)).astype(np.float32)


def quantized(folder: Path, left_out: str = "") -> dict[str, np.ndarray]:
    """The golden of DeepSeek-V3 with its matrices in float8, and a layer behind it; returns them as written."""
    folder.mkdir()
    generator, leaves = np.random.default_rng(0), {}
    for name, leaf in load_file(GOLDEN / "model.safetensors").items():
        if leaf.ndim == 2 and not any(part in name for part in ("embed", "lm_head", "gate.weight")):
            leaves[name], leaves[f"{name}_scale_inv"] = matrix(generator, leaf.shape)
        else:
            leaves[name] = leaf.astype(ml_dtypes.bfloat16) if leaf.ndim == 2 else leaf
    leaves["model.layers.3.eh_proj.weight"], leaves["model.layers.3.eh_proj.weight_scale_inv"] = matrix(
        generator, (32, 64)
    )
    leaves.pop(left_out, None)
    save_file(leaves, folder / "model.safetensors")
    options = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    config = json.loads((GOLDEN / "config.json").read_text()) | {"quantization_config": options}
    (folder / "config.json").write_text(json.dumps(config))
    return leaves


def test_values_and_parts(tmp_path: Path):
    generator = np.random.default_rng(1)
    codes, scales = matrix(generator, SHAPE)
    other = generator.standard_normal(7).astype(np.float32)
    save_file({"first": other, "w": codes, "w_scale_inv": scales, "z": other}, tmp_path / "model.safetensors")
    files = Float8Files(tmp_path)
    assert set(files.tensors) == {"first", "w", "z"} and files.tensors["w"].dtype == ml_dtypes.bfloat16
    found = files.read("w", tuple(slice(0, size) for size in SHAPE))
    for row in range(0, SHAPE[0], 37):
        for column in range(SHAPE[1]):
            product = np.float32(codes[row, column]) * scales[row // 128, column // 128]
            assert found[row, column] == ml_dtypes.bfloat16(product)
    check_parts(files, "w", found)
    np.testing.assert_array_equal(files.read("z", (slice(2, 5),)), other[2:5])


def test_an_export_has_the_same_values_in_bfloat16_and_is_bit_exact_from_there(tmp_path, capfd):
    leaves = quantized(tmp_path / "float8")
    source = HFFolder(tmp_path / "float8")
    assert source.remarks == ["without layer 3, for the prediction of further tokens"]
    export = plan_export(source)
    check_export(export)
    export.write(_made(tmp_path / "bfloat16"), shard_bytes=10**9)
    written = tensors(tmp_path / "bfloat16")
    assert set(written) == {name for name in leaves if "scale_inv" not in name and "layers.3" not in name}
    wanted = leaves[NAME].astype(np.float32) * leaves[f"{NAME}_scale_inv"]
    assert written[NAME].tobytes() == wanted.astype(ml_dtypes.bfloat16).tobytes()
    assert "quantization_config" not in json.loads((tmp_path / "bfloat16/config.json").read_text())
    assert main(["hf-to-jaxpar", str(tmp_path / "float8"), str(tmp_path / "start")]) == 0
    assert "without layer 3" in capfd.readouterr().out
    assert main(["jaxpar-to-hf", str(tmp_path / "start"), str(tmp_path / "again")]) == 0
    assert (tmp_path / "again/model.safetensors").read_bytes() == (tmp_path / "bfloat16/model.safetensors").read_bytes()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_codes_without_scales_are_refused(tmp_path: Path):
    quantized(tmp_path / "float8", left_out=f"{NAME}_scale_inv")
    with refused("model.safetensors", NAME, "missing", "128 x 128"):
        HFFolder(tmp_path / "float8")


def test_scales_of_other_blocks_are_refused(tmp_path: Path):
    codes, _ = matrix(np.random.default_rng(0), SHAPE)
    save_file({"w": codes, "w_scale_inv": np.ones((5, 4), np.float32)}, tmp_path / "model.safetensors")
    with refused("'w'", "[5, 4]", "[3, 2]"):
        Float8Files(tmp_path)

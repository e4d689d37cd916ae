"""Tensors in MXFP4 are read as transformers reads them, whole and by parts, and written as bfloat16."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxpar.interop.conversion.export import plan_export
from jaxpar.interop.conversion.round_trip import check_export
from jaxpar.interop.sources.hf_folder import HFFolder
from jaxpar.interop.sources.mxfp4 import Mxfp4Files, dequantized
from tests.goldens.loading import FOLDER
from tests.interop.folders import check_parts, tensors
from tests.sentences import refused

QUANTIZED, PLAIN = FOLDER / "quantized/gpt_oss", FOLDER / "quantized/gpt_oss_bfloat16"
STEM = "model.layers.0.mlp.experts.gate_up_proj"


def test_an_export_of_quantized_weights_is_what_transformers_saves(tmp_path: Path):
    export = plan_export(HFFolder(QUANTIZED))
    check_export(export)
    export.write(tmp_path, shard_bytes=10**9)
    wanted, found = tensors(PLAIN), tensors(tmp_path)
    assert {name: leaf.dtype.name for name, leaf in found.items()} == dict.fromkeys(wanted, "bfloat16")
    assert all(found[name].tobytes() == leaf.tobytes() for name, leaf in wanted.items())
    assert (tmp_path / "config.json").read_bytes() == (PLAIN / "config.json").read_bytes()


def test_a_part_is_that_of_the_whole():
    files = Mxfp4Files(QUANTIZED)
    check_parts(files, STEM, files.read(STEM, tuple(slice(0, size) for size in files.tensors[STEM].shape)))


def test_values_are_those_of_the_standard():
    """OCP Microscaling Formats 1.0: (-1)^s 2^(e - 1) (1 + m / 2), or m / 2 where e is 0, times 2^(scale - 127)."""
    codes = np.arange(16, dtype=np.uint8).reshape(1, 1, 16)
    for scale in (0, 1, 127, 200, 254):
        found = dequantized(codes | codes[..., ::-1] << 4, np.full((1, 1), scale, np.uint8))[0].astype(np.float64)
        for byte in range(16):
            for place, code in ((2 * byte, byte), (2 * byte + 1, 15 - byte)):
                sign, exponent, mantissa = code >> 3, code >> 1 & 3, code & 1
                value = 2.0 ** (exponent - 1) * (1 + mantissa / 2) if exponent else mantissa / 2
                value *= 2.0 ** (scale - 127)
                wanted = np.inf if value >= 2.0**128 else value
                assert found[place] == (-wanted if sign else wanted)
    assert np.isnan(dequantized(codes, np.full((1, 1), 255, np.uint8)).astype(np.float32)).all()


@pytest.mark.parametrize("case", ["no scales", "other blocks", "another tensor"])
def test_what_is_no_mxfp4_is_refused(case: str, tmp_path: Path):
    leaves = load_file(QUANTIZED / "model.safetensors")
    named = f"{STEM}_blocks"
    if case == "no scales":
        del leaves[f"{STEM}_scales"]
    elif case == "other blocks":
        leaves[named] = leaves[named][..., :8].copy()
    else:
        named = "codes"
        leaves[named] = np.zeros(3, np.uint8)
    save_file(leaves, tmp_path / "model.safetensors")
    with refused("model.safetensors", named):
        Mxfp4Files(tmp_path)

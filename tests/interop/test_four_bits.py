"""Matrices in NF4, GPTQ and AWQ are read as what they stand for, all at once and by parts."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxpar.interop.conversion.export import plan_export
from jaxpar.interop.conversion.round_trip import check_export
from jaxpar.interop.sources.bitsandbytes import BitsAndBytesFiles
from jaxpar.interop.sources.hf_folder import HFFolder
from jaxpar.interop.sources.packed_integers import AwqFiles, GptqFiles
from tests.goldens.loading import FOLDER
from tests.interop.folders import check_parts, tensors
from tests.sentences import refused

GOLDEN = FOLDER / "qwen3"
QUERY = "model.layers.0.self_attn.q_proj.weight"
NF4 = [
    -1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.09105, 0.0, 0.0795803, 0.1609302, 0.2461123,
    0.3379152, 0.4407098, 0.562617, 0.7229568, 1.0,
]  # fmt: skip
"""Values of codes, to seven digits (arXiv:2305.14314, appendix E)."""
GROUP = 16
"""Inputs that have one scale, in the tests."""
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""The place in a word of each of eight outputs of AWQ."""


def draw(*name: object) -> np.random.Generator:
    return np.random.default_rng(list(str(name).encode()))


def words_of(integers: list[list[int]], bits: int) -> np.ndarray:
    """Words of 32 bits: of each list its integers, the first in the lowest bits."""
    per_word = 32 // bits
    rows = []
    for row in integers:
        texts = [
            "".join(f"{one:0{bits}b}" for one in row[i : i + per_word][::-1]) for i in range(0, len(row), per_word)
        ]
        rows.append([int(text, 2) for text in texts])
    return np.array(rows, np.uint32).view(np.int32)


def gptq(shape: tuple[int, int], bits: int, less: int, seed: object) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Tensors of a matrix [output, input] by the ends of their names, in which inputs belong to groups in any order;
    what it stands for. `less` is what is subtracted from zeros."""
    (outputs, inputs), random = shape, draw("gptq", seed)
    groups = -(-inputs // GROUP)
    integers = random.integers(0, 2**bits, (inputs, outputs))
    zeros = random.integers(1, 2**bits, (groups, outputs))
    scales = random.uniform(1e-3, 1e-2, (groups, outputs)).astype(np.float16)
    of_input = random.permutation(np.arange(inputs) // GROUP)
    values = np.empty(shape, np.float16)
    for i in range(inputs):
        for o in range(outputs):
            group = of_input[i]
            values[o, i] = np.float16(float(integers[i, o] - zeros[group, o]) * float(scales[group, o]))
    return {
        "qweight": np.ascontiguousarray(words_of(integers.T.tolist(), bits).T),
        "qzeros": words_of((zeros - less).tolist(), bits), "scales": scales, "g_idx": of_input.astype(np.int32),
    }, values  # fmt: skip


def awq(shape: tuple[int, int], seed: object) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The same in AWQ."""
    (outputs, inputs), random = shape, draw("awq", seed)
    integers = random.integers(0, 16, (inputs, outputs))
    zeros = random.integers(0, 16, (inputs // GROUP, outputs))
    scales = random.uniform(1e-3, 1e-2, (inputs // GROUP, outputs)).astype(np.float16)
    values = np.empty(shape, np.float16)
    for i in range(inputs):
        for o in range(outputs):
            values[o, i] = np.float16(float(integers[i, o] - zeros[i // GROUP, o]) * float(scales[i // GROUP, o]))
    turned = lambda rows: [
        [row[start + AWQ_PLACES.index(place)] for start in range(0, outputs, 8) for place in range(8)] for row in rows
    ]
    return {
        "qweight": words_of(turned(integers.tolist()), 4), "qzeros": words_of(turned(zeros.tolist()), 4),
        "scales": scales,
    }, values  # fmt: skip


def nf4(shape: tuple[int, int], nested: bool, dtype: str, seed: object) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Tensors of a matrix by the ends of their names, and what it stands for. Its blocks go beyond rows."""
    random, numbers, block = draw("nf4", seed), shape[0] * shape[1], 64
    codes = random.integers(0, 16, numbers)
    table, blocks = np.array(NF4, np.float32), -(-numbers // block)
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": block, "dtype": dtype, "shape": list(shape)}
    if nested:
        each, offset = random.integers(0, 256, blocks, np.uint8), 0.25
        levels, factors = np.linspace(-1, 1, 256, dtype=np.float32), random.uniform(0.05, 0.1, -(-blocks // 16))
        parts = {"absmax": each, "nested_quant_map": levels, "nested_absmax": factors.astype(np.float32)}
        state |= {"nested_blocksize": 16, "nested_dtype": "float32", "nested_offset": offset}
        absmax = [
            np.float32(np.float32(levels[one] * np.float32(factors[i // 16])) + np.float32(offset))
            for i, one in enumerate(each)
        ]
    else:
        parts = {"absmax": random.uniform(0.1, 1, blocks).astype(np.float32)}
        absmax = list(parts["absmax"])
    values = np.array([table[code] * absmax[i // block] for i, code in enumerate(codes)], np.float32)
    padded = [*codes.tolist(), 0]
    packed = [16 * padded[i] + padded[i + 1] for i in range(0, numbers, 2)]
    return {
        "": np.array(packed, np.uint8)[:, None], "quant_map": table, **parts,
        "quant_state.bitsandbytes__nf4": np.frombuffer(json.dumps(state).encode(), np.uint8),
    }, values.reshape(shape).astype(np.dtype(dtype) if dtype != "bfloat16" else ml_dtypes.bfloat16)  # fmt: skip


GPTQ = {"gptq": (4, 1), "gptq_v2": (4, 0), "gptq in 8 bits": (8, 1), "gptq_v2 in 2 bits": (2, 0)}
"""Bits, and what is subtracted from zeros."""
NESTED = [(nested, dtype) for nested in (False, True) for dtype in ("bfloat16", "float16", "float32")]
VALUES: dict[str, tuple[Any, dict[str, Any], tuple[dict[str, np.ndarray], np.ndarray]]] = {
    **{name: (GptqFiles, {"bits": bits, "checkpoint_format": name.split()[0]}, gptq((40, 64), bits, less, "values"))
       for name, (bits, less) in GPTQ.items()},
    "awq": (AwqFiles, {"bits": 4}, awq((40, 64), "values")),
    **{f"nf4{' nested' * nested} {dtype}": (BitsAndBytesFiles, {}, nf4((37, 45), nested, dtype, "values"))
       for nested, dtype in NESTED},
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_values_are_those_of_the_format(name: str, tmp_path: Path):
    format, options, (leaves, wanted) = VALUES[name]
    stem, other = "w.weight" if format is BitsAndBytesFiles else "w", draw().standard_normal(7).astype(np.float16)
    leaves = {f"{stem}.{end}".removesuffix("."): leaf for end, leaf in leaves.items()}
    save_file({"w.bias": other} | leaves, tmp_path / "model.safetensors")
    files = format(tmp_path, options)
    assert set(files.tensors) == {"w.weight", "w.bias"}
    check_parts(files, "w.weight", wanted)
    np.testing.assert_array_equal(files.read("w.bias", (slice(2, 5),)), other[2:5])


OPTIONS: dict[str, dict[str, Any]] = {
    "gptq": {"bits": 4, "group_size": GROUP, "desc_act": True, "sym": False, "checkpoint_format": "gptq"},
    "awq": {"bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True},
    "bitsandbytes": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
}


MAKERS: Mapping[str, Callable[..., tuple[dict[str, np.ndarray], np.ndarray]]] = {
    "gptq": lambda shape, seed: gptq(shape, 4, 1, seed),
    "awq": awq,
    "bitsandbytes": lambda shape, seed: nf4(shape, True, "float16", seed),
}


def quantized(folder: Path, method: str) -> dict[str, np.ndarray]:
    """The golden of Qwen3 with its linear maps in a format; returns the matrices by their names."""
    folder.mkdir()
    leaves, wanted = {}, {}
    for name, leaf in load_file(GOLDEN / "model.safetensors").items():
        if "_proj.weight" not in name:
            leaves[name] = leaf.astype(np.float16)
            continue
        stem = name if method == "bitsandbytes" else name.removesuffix(".weight")
        parts, wanted[name] = MAKERS[method](leaf.shape, name)
        leaves |= {f"{stem}.{end}".removesuffix("."): part for end, part in parts.items()}
    save_file(leaves, folder / "model.safetensors")
    config = json.loads((GOLDEN / "config.json").read_text())
    config["quantization_config"] = {"quant_method": method} | OPTIONS[method]
    (folder / "config.json").write_text(json.dumps(config))
    return wanted


@pytest.mark.parametrize("method", OPTIONS)
def test_an_export_of_a_folder_has_its_values(method: str, tmp_path: Path):
    wanted = quantized(tmp_path / "model", method)
    export = plan_export(HFFolder(tmp_path / "model"))
    check_export(export)
    (tmp_path / "plain").mkdir()
    export.write(tmp_path / "plain", shard_bytes=10**9)
    written = tensors(tmp_path / "plain")
    assert written.keys() == load_file(GOLDEN / "model.safetensors").keys() and len(wanted) == 14
    for name, values in wanted.items():
        assert written[name].dtype == np.float16 and np.array_equal(written[name], values)
    assert "quantization_config" not in json.loads((tmp_path / "plain/config.json").read_text())


def test_biases_of_zero_beside_matrices_of_a_model_without_are_left_out(tmp_path: Path):
    """Older writers of GPTQ give each matrix a bias."""
    quantized(tmp_path / "model", "gptq")
    leaves, name = load_file(tmp_path / "model/model.safetensors"), QUERY.replace("weight", "bias")
    save_file(leaves | {name: np.zeros(48, np.float16)}, tmp_path / "model/model.safetensors")
    assert QUERY in {tensor.name for tensor in HFFolder(tmp_path / "model").tensors}
    save_file(leaves | {name: np.ones(48, np.float16)}, tmp_path / "model/model.safetensors")
    with refused(name, "not one of this model"):
        HFFolder(tmp_path / "model")


@pytest.mark.parametrize(
    ("method", "option", "value"),
    [
        ("gptq", "bits", 3), ("gptq", "checkpoint_format", "marlin"), ("gptq", "dynamic", {"-:.*down.*": {}}),
        ("awq", "version", "gemv"), ("awq", "zero_point", False), ("awq", "bits", 8),
        ("bitsandbytes", "load_in_4bit", False), ("bitsandbytes", "bnb_4bit_quant_storage", "bfloat16"),
    ],
)  # fmt: skip
def test_an_option_that_is_not_supported_is_named(method: str, option: str, value: object, tmp_path: Path):
    quantized(tmp_path / "model", method)
    file = tmp_path / "model/config.json"
    config = json.loads(file.read_text())
    config["quantization_config"][option] = value
    file.write_text(json.dumps(config))
    with refused(f"quantization_config.{option}", str(value)):
        HFFolder(tmp_path / "model")


def test_matrices_that_stand_the_other_way_round_are_refused(tmp_path: Path):
    """Matrices of GPT-2 have their inputs first; a square one would be read transposed without an error."""
    (tmp_path / "model").mkdir()
    config = json.loads((FOLDER / "gpt2/config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq"} | OPTIONS["gptq"]
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    with refused("quantization_config.quant_method", "gptq", "compressed-tensors or fp8 for gpt2"):
        HFFolder(tmp_path / "model")


@pytest.mark.parametrize(
    ("format", "changed", "parts"),
    [
        (GptqFiles, {"w.qzeros": None}, ("'w'", "qzeros missing")),
        (GptqFiles, {"w.g_idx": np.zeros(63, np.int32)}, ("'w'", "g_idx [63]")),
        (GptqFiles, {"w.g_idx": np.full(64, 4, np.int32)}, ("w.g_idx", "from 4 to 4", "4 groups")),
        (GptqFiles, {"w.scales": np.zeros((4, 39), np.float16)}, ("'w'", "scales [4, 39]")),
        (GptqFiles, {"z.qzeros": np.zeros((1, 1), np.int32)}, ("z.qzeros", "I32", ".qweight")),
        *(
            (GptqFiles, {f"w.{end}": np.zeros(shape, np.float32)}, (f"{end} {list(shape)} float32", "int32"))
            for end, shape in {"qweight": (8, 40), "qzeros": (4, 5), "g_idx": (64,)}.items()
        ),
        (GptqFiles, {"w.scales": np.zeros((4, 40), np.int32)}, ("scales [4, 40] int32", "a float")),
        *(
            (AwqFiles, {f"w.{end}": np.zeros(shape, np.float16)}, (f"{end} {list(shape)} float16", "int32"))
            for end, shape in {"qweight": (64, 5), "qzeros": (4, 5)}.items()
        ),
        (AwqFiles, {"w.scales": np.zeros((4, 40), np.int32)}, ("scales [4, 40] int32", "a float")),
        *(
            (BitsAndBytesFiles, {f"w.weight{end}": leaf}, (f"'w.weight{end}' is {leaf.dtype}", "expected"))
            for end, leaf in {
                "": np.zeros((1280, 1), np.float32), ".quant_map": np.zeros(16, np.uint8),
                ".absmax": np.zeros(40, np.float32), ".nested_absmax": np.zeros(3, np.uint8),
                ".nested_quant_map": np.zeros(256, np.uint8),
            }.items()
        ),
        (AwqFiles, {"w.scales": np.zeros((5, 40), np.float16), "w.qzeros": np.zeros((5, 5), np.int32)}, ("scales [5",)),
        (BitsAndBytesFiles, {"w.weight.absmax": None}, ("w.weight.absmax", "missing")),
        (BitsAndBytesFiles, {"w.weight.nested_absmax": np.zeros(1, np.float32)}, ("nested_absmax", "[1]", "[3]")),
        (BitsAndBytesFiles, {"w.weight.quant_state.bitsandbytes__nf4": None}, ("U8", "quant_state.bitsandbytes__nf4")),
        (
            BitsAndBytesFiles, {"w.weight.quant_state.bitsandbytes__nf4": np.frombuffer(b'{"shape": [2]}', np.uint8)},
            ("quant_state.bitsandbytes__nf4", "blocksize"),
        ),
    ],
)  # fmt: skip
def test_tensors_that_do_not_belong_together_are_refused(format, changed, parts, tmp_path):
    made = {GptqFiles: lambda: gptq((40, 64), 4, 1, 0), AwqFiles: lambda: awq((40, 64), 0)}
    leaves = made.get(format, lambda: nf4((40, 64), True, "float16", 0))()[0]
    stem = "w.weight" if format is BitsAndBytesFiles else "w"
    named = {f"{stem}.{end}".removesuffix("."): leaf for end, leaf in leaves.items()} | changed
    save_file({name: leaf for name, leaf in named.items() if leaf is not None}, tmp_path / "model.safetensors")
    with refused("model.safetensors", *parts):
        format(tmp_path, {"bits": 4})


def test_factors_of_blocks_that_are_not_quantized_are_floats(tmp_path: Path):
    leaves = {f"w.weight.{end}".removesuffix("."): leaf for end, leaf in nf4((40, 64), False, "float16", 0)[0].items()}
    save_file(leaves | {"w.weight.absmax": np.zeros(40, np.uint8)}, tmp_path / "model.safetensors")
    with refused("'w.weight.absmax' is uint8 [40]", "float32"):
        BitsAndBytesFiles(tmp_path, {})

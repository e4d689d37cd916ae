"""Adapters are read as they were trained, from a folder in PEFT's format and from a run, and only for their model."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxpar.config.kinds import layer_kinds
from jaxpar.convert import main
from jaxpar.interop.adapters.adapter import AdapterSource, MergedAdapter
from jaxpar.interop.adapters.adapter_config import Scales
from jaxpar.interop.adapters.open_adapter import open_adapter
from jaxpar.interop.mapping.weight_names import weight_specs
from jaxpar.interop.sources.hf_folder import HFFolder
from jaxpar.interop.sources.open_source import open_source
from jaxpar.interop.sources.tensor_files import TensorFiles
from tests.goldens.loading import FOLDER, WITH_PEFT
from tests.interop.folders import copy_of, rewrite, tensors
from tests.interop.peft_adapters import assert_products, changed, products, with_tensors
from tests.interop.test_adapter import LORA, TARGETS, save_factors
from tests.sentences import refused


@pytest.mark.matrix(quick=("llama",), ci=2)
@pytest.mark.parametrize("name", [*WITH_PEFT, "qwen3_5", "mixtral", "qwen3_moe"])
def test_a_folder_in_pefts_format_has_the_factors_of_the_run_that_was_exported(name: str, tmp_path: Path):
    base, lora = HFFolder(FOLDER / name), replace(LORA, targets=TARGETS.get(name, LORA.targets))
    if name == "qwen3_5":
        lora = replace(LORA, targets=("query", "value"))
    save_factors(FOLDER / name, tmp_path / "run", lora)
    assert main(["jaxpar-to-hf", str(tmp_path / "run"), str(tmp_path / "peft"), "--adapter"]) == 0
    of_run, of_folder = (open_adapter(tmp_path / one, base, "--adapter") for one in ("run", "peft"))
    assert of_run.rank == of_folder.rank == LORA.rank, "ranks of other matrices of a tensor are left out"
    assert_products(of_run, of_folder)
    merged, run = MergedAdapter(base, of_folder), open_source(tmp_path / "run", "MODEL")
    for layer, kind in enumerate(layer_kinds(base.model)):
        for weight, spec in weight_specs(base.model, kind).items():
            if weight.startswith("layers."):
                region = tuple(slice(size // 3, size) for size in spec.shape)
                values = (one.read(weight, [layer], region) for one in (merged, run))
                np.testing.assert_allclose(*values, atol=1e-5)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    save_factors(FOLDER / "llama", folder / "run")
    assert main(["jaxpar-to-hf", str(folder / "run"), str(folder / "peft"), "--adapter"]) == 0
    return folder


PATTERNS = {
    "proj": 2.0, r"model\.layers\.[1-9]\.self_attn\.(q|v)_proj": 30.0, "^model.layers.0.mlp.down_proj": 50.0,
    "^layers.0.mlp.gate_proj": 70.0, "[kq]_proj": 90.0,
}  # fmt: skip
OF_PATTERNS = {
    ("layers.attention.query", 0): 90.0, ("layers.attention.query", 1): 30.0, ("layers.attention.value", 1): 30.0,
    ("layers.attention.key", 0): 90.0, ("layers.attention.key", 1): 90.0, ("layers.mlp.down", 0): 50.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "alphas", "root"),
    [
        (
            {"use_rslora": True, "alpha_pattern": {"0.self_attn.q_proj": 30.0}},
            {("layers.attention.query", 0): 30.0},
            3**0.5,
        ),
        ({"alpha_pattern": PATTERNS}, OF_PATTERNS, 1.0),
    ],
    ids=["roots of ranks", "regular expressions"],
)
def test_scales_are_those_of_peft(exported: Path, tmp_path: Path, keys, alphas, root):
    """Of patterns, the first that matches the end of a name, from a full stop on, decides."""
    base = HFFolder(FOLDER / "llama")
    plain = products(open_adapter(exported / "peft", base, "--adapter"))
    other = products(open_adapter(changed(exported, tmp_path / "other", **keys), base, "--adapter"))
    assert alphas.keys() <= plain.keys()
    for key, product in plain.items():
        scale = alphas.get(key, LORA.alpha) / LORA.alpha * root
        np.testing.assert_allclose(other[key], product * scale, rtol=1e-5, atol=1e-6)


def test_names_of_all_experts_scale_quickly_and_the_first_that_matches_decides():
    """As PEFT writes them for EVA, one for each module, between regular expressions."""
    experts = [f"model.layers.{n // 384}.mlp.experts.{n // 3 % 128}.{'gud'[n % 3]}_proj" for n in range(48 * 384)]
    alphas = {r"layers\.0\.(mlp|x)\..*\.g_proj": 1.0} | {name: float(n) for n, name in enumerate(experts, start=2)}
    alphas |= {r"attn\.q_proj": 0.25, "[kq]_proj": 0.5, "^layers.0.v_proj": 9.0, "v_proj": 0.125}
    scales = Scales({"lora_alpha": 64, "alpha_pattern": alphas}, "--adapter")
    assert [scales.factor(name, 1) for name in experts] == [
        1.0 if name.startswith("model.layers.0.") and "g_proj" in name else alphas[name] for name in experts
    ]
    names = "x.attn.q_proj", "q_proj", "layers.0.v_proj", "x.layers.0.v_proj", "xv_proj", "o_proj"
    assert [scales.factor(name, 1) for name in names] == [0.25, 0.5, 9.0, 0.125, 64.0, 64.0]


def test_keys_that_change_nothing_are_read_over(exported: Path, tmp_path: Path):
    """The base is the model that a command names, and no path of the configuration is followed."""
    (tmp_path / "secret").write_text("{}")
    keys: dict[str, Any] = {
        "init_lora_weights": "gaussian", "loftq_config": {}, "kasa_config": None, "use_bdlora": None,
        "revision": "../../secret", "base_model_name_or_path": "../secret", "r": 10**9, "exclude_modules": ["lm_head"],
        "auto_mapping": {"base_model_class": "A"}, "peft_version": "0.21.2", "megatron_core": "megatron.core",
        "qalora_group_size": 16, "lora_dropout": 0.1, "ensure_weight_tying": False, "layers_to_transform": [0],
        "a_later_key": None, "another": False,
    }  # fmt: skip
    base = HFFolder(FOLDER / "llama")
    other = open_adapter(changed(exported, tmp_path / "other", **keys), base, "--adapter")
    assert_products(other, open_adapter(exported / "peft", base, "--adapter"))


@pytest.mark.parametrize(
    ("keys", "parts"),
    [
        ({"peft_type": "IA3"}, ("peft_type: LORA",)),
        ({"use_dora": True}, ("use_dora is True", "expected False")),
        ({"bias": "all"}, ("bias is 'all'", "expected 'none'")),
        ({"modules_to_save": ["lm_head"]}, ("modules_to_save",)),
        ({"lora_alpha": "much"}, ("lora_alpha is 'much'", "a number")),
        ({"lora_alpha": 10**400}, ("lora_alpha is 1000", "a number of at most 1e+30")),
        ({"lora_alpha": -1e300}, ("lora_alpha is -1e+300", "a number of at most 1e+30")),
        ({"alpha_pattern": {"q_proj": None}}, ("alpha_pattern", "numbers")),
        ({"alpha_pattern": {f"{n:03}" + "[aé€]" * 190: 3.0 for n in range(18)}}, ("of 17154 letters", "256 of 16384")),
        ({"alpha_pattern": {f"[q]{n}": 3.0 for n in range(257)}}, ("257 regular expressions", "256 of 16384")),
        ({"alpha_pattern": {"(|.)" * 18 + "!": 3.0}}, ("alpha_pattern", "branches", "may not end")),
        ({"alpha_pattern": {"(a|b|c)" * 8 + ".*.*": 3.0}}, ("alpha_pattern", "branches", "may not end")),
        ({"alpha_pattern": {f".*{n}": 3.0 for n in range(33)}}, ("33 patterns that repeat", "at most 32")),
        ({"alpha_pattern": {"q_(proj": 3.0}}, ("alpha_pattern", "'q_(proj'", "no regular expression")),
        ({"alpha_pattern": {"(.+)+!": 3.0}}, ("alpha_pattern", "'(.+)+!'", "may not end")),
        ({"alpha_pattern": {".*.*.*.*!": 3.0}}, ("alpha_pattern", "more than 3", "may not end")),
        ({"init_lora_weights": "pissa_niter_16"}, ("init_lora_weights is 'pissa_niter_16'", "expected True", "'eva'")),
        ({"init_lora_weights": 1}, ("init_lora_weights is 1", "expected True")),
        ({"use_rslora": "yes"}, ("use_rslora is 'yes'", "expected False, True")),
        ({"kasa_config": {"beta": 1e-4}}, ("kasa_config is {'beta'", "expected False")),
        ({"a_later_key": 3}, ("a_later_key is 3", "expected False")),
    ],
)
def test_an_adapter_that_is_more_than_factors_is_refused(exported, tmp_path, keys, parts):
    folder = changed(exported, tmp_path / "other", **keys)
    with refused("--adapter", str(folder), *parts):
        open_adapter(folder, HFFolder(FOLDER / "llama"), "--adapter")


def test_an_adapter_of_another_model_is_refused(exported: Path, tmp_path: Path):
    base = HFFolder(FOLDER / "llama")
    for other in ("gpt2", "qwen3"):
        with refused("--adapter", "expected", "an adapter of this model"):
            open_adapter(exported / "peft", HFFolder(FOLDER / other), "--adapter")
    q = "base_model.model.model.layers.0.self_attn.q_proj"
    cases: list[tuple[str, Callable[[dict[str, np.ndarray]], Mapping[str, np.ndarray]]]] = [
        ("lm_head", lambda all: all | {"base_model.model.lm_head.lora_A.weight": np.zeros((3, 32), np.float32)}),
        ("q_proj", lambda all: {name: value for name, value in all.items() if name != f"{q}.lora_B.weight"}),
        ("lora_magnitude_vector", lambda all: all | {f"{q}.lora_magnitude_vector": np.zeros(3, np.float32)}),
        ("layers.9.", lambda all: {name.replace("layers.1.", "layers.9."): value for name, value in all.items()}),
        ("q_proj", lambda all: all | {f"{q}.lora_B.weight": np.zeros((7, 3), np.float32)}),
        ("a rank of at least 1", lambda all: all | {
            f"{q}.lora_{which}.weight": np.zeros(shape, np.float32) for which, shape in (("A", (0, 32)), ("B", (32, 0)))
        }),
        ("a rank of at least 1", lambda all: all | {f"{q}.lora_A.weight": np.zeros((), np.float32)}),
        ("a rank of at least 1", lambda all: all | {f"{q}.lora_B.weight": np.zeros((8, 3, 1), np.float32)}),
        ("layer 0 that are infinite", lambda all: all | {f"{q}.lora_A.weight": np.nan * all[f"{q}.lora_A.weight"]}),
        ("layer 0 that are infinite", lambda all: all | {f"{q}.lora_B.weight": np.inf + all[f"{q}.lora_B.weight"]}),
        ("rank 600", lambda all: all | {
            f"{q}.lora_A.weight": np.ones((600, all[f"{q}.lora_A.weight"].shape[1]), np.float32),
            f"{q}.lora_B.weight": np.ones((len(all[f"{q}.lora_B.weight"]), 600), np.float32),
        }),
    ]  # fmt: skip
    for number, (named, change) in enumerate(cases):
        with refused("--adapter", named, "expected"):
            open_adapter(with_tensors(exported, tmp_path / str(number), change), base, "--adapter")
    with refused("--adapter", "latent"):
        open_adapter(tmp_path / "run", HFFolder(FOLDER / "deepseek_v3"), "--adapter")
    with refused("--adapter", "an adapter", "lora.rank"):
        open_adapter(FOLDER / "llama", base, "--adapter")
    (tmp_path / "none").mkdir()
    (tmp_path / "none/adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "lora_alpha": 1}))
    with refused("--adapter", "adapter_model.safetensors"):
        open_adapter(tmp_path / "none", base, "--adapter")
    copy = copy_of("llama", tmp_path / "copy")
    rewrite(copy, {"model.norm.weight": tensors(copy)["model.norm.weight"] + 1})
    with refused("--adapter", "different weights"):
        open_adapter(exported / "run", HFFolder(copy), "--adapter")


FILE, QUERY = "adapter_model.safetensors", "base_model.model.model.layers.0.self_attn.q_proj.lora_"
type Header = dict[str, dict[str, Any]]


def with_header(folder: Path, missing: int = 0, **parts: dict[str, Any]) -> None:
    """A file with other entries of the factors of a matrix in its header; what it has of all tensors is a hole, and
    `missing` bytes are not there."""
    content, end = (folder / FILE).read_bytes(), 0
    header: Header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    header.pop("__metadata__", None)
    for name, entry in header.items():
        entry |= parts.get(name.removeprefix(QUERY).removesuffix(".weight"), {})
        first, end = end, end + 4 * int(np.prod(entry["shape"]))
        entry["data_offsets"] = entry.pop("at", [first, end])
    text = json.dumps(header).encode()
    with (folder / FILE).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end - missing)


def shorter(folder: Path, size: int) -> None:
    (folder / FILE).write_bytes((folder / FILE).read_bytes()[:size])


def pickled(folder: Path) -> None:
    (folder / FILE).unlink()
    (folder / "adapter_model.bin").write_bytes(b"\x80\x04.")


BROKEN: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "a pickle": (pickled, ("adapter_model.bin is a pickle", f"expected {FILE}")),
    "no file": (lambda folder: (folder / FILE).unlink(), (f"no {FILE}", "beside adapter_config.json")),
    "a pipe": (lambda folder: ((folder / FILE).unlink(), os.mkfifo(folder / FILE)), (FILE, "a pipe", "regular file")),
    "half a file": (lambda folder: shorter(folder, 9000), (FILE, "no whole safetensors file")),
    "half a header": (lambda folder: shorter(folder, 100), (FILE, "no whole safetensors file")),
    "an empty file": (lambda folder: shorter(folder, 0), (FILE, "no whole safetensors file")),
    "a header of 2^62 bytes": (lambda folder: (folder / FILE).write_bytes((2**62).to_bytes(8, "little") + b"{}"),
        (FILE, "no whole safetensors file")),
    "more bytes than there are": (lambda folder: with_header(folder, missing=2**30, A={"shape": [3, 2**30]}),
        (FILE, "no whole safetensors file")),
    "a tensor inside another": (lambda folder: with_header(folder, A={"at": [0, 384]}),
        (FILE, "no whole safetensors file")),
    "a rank of millions": (lambda folder: with_header(folder, A={"shape": [2**24, 32]}, B={"shape": [64, 2**24]}),
        ("rank 16777216 in", "q_proj.lora_A", "at most 512")),
    "another width, of gigabytes": (lambda folder: with_header(folder, A={"shape": [3, 2**30]}),
        ("[3, 1073741824]", "layers.0.self_attn.q_proj", "expected [3, 32] and [64, 3]")),
    "factors of integers": (lambda folder: with_header(folder, A={"dtype": "I32"}),
        (FILE, "q_proj.lora_A", "I32", "expected one of F32")),
    "a configuration that nests": (lambda folder: (folder / "adapter_config.json").write_text("[" * 100_000),
        ("adapter_config.json", "nests too deep")),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_folder_is_refused_before_its_tensors_are_read(
    name: str, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    breaking, parts = BROKEN[name]
    folder = Path(shutil.copytree(exported / "peft", tmp_path / "broken"))
    breaking(folder)
    before = {path.name: path.lstat().st_mtime_ns for path in folder.iterdir()}
    regions: list[str] = []
    read = TensorFiles.read
    monkeypatch.setattr(TensorFiles, "read", lambda self, *one: regions.append(one[0]) or read(self, *one))
    with refused(str(folder), *parts):
        open_adapter(folder, HFFolder(FOLDER / "llama"), "--adapter")
    assert not any("self_attn.q_proj.lora" in name for name in regions)
    assert before == {path.name: path.lstat().st_mtime_ns for path in folder.iterdir()}


def test_factors_of_an_index_without_an_adapter_are_zero(exported: Path):
    base = HFFolder(FOLDER / "llama")
    adapter = open_adapter(exported / "peft", base, "--adapter")
    source = AdapterSource(base, [None, adapter])
    a, b = adapter.factors["layers.mlp.down", 1]
    region = slice(0, 2), slice(2, 9), slice(0, 3)
    read = source.read("layers.mlp.down_lora_a", [1], region)
    np.testing.assert_array_equal(read, np.stack([0 * a[2:9], a[2:9]])[None])
    read = source.read("layers.mlp.down_lora_b", [1], (slice(1, 2), slice(1, 3), slice(4, 8)))
    np.testing.assert_array_equal(read, b[None, None, 1:3, 4:8])

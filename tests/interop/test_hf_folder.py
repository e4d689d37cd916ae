"""A folder in Hugging Face's format is checked whole before a weight is read; what is wrong with it is named."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxpar.config import UserError
from jaxpar.interop.conversion.export import plan_export
from jaxpar.interop.conversion.round_trip import check_import
from jaxpar.interop.sources.hf_folder import HFFolder
from jaxpar.interop.sources.open_source import open_source
from jaxpar.interop.sources.tensor_files import DIGEST_ROWS, TensorFiles
from tests.goldens.loading import FOLDER
from tests.interop.folders import copy_of, in_shards, rewrite, tensors
from tests.sentences import refused

UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A folder to break."""
    return copy_of("llama", tmp_path / "model")


def test_a_tensor_that_is_missing(llama: Path):
    rewrite(llama, {UP: None, "model.norm.weight": None})
    with refused(str(llama), UP, "missing", "1 more"):
        HFFolder(llama)


def test_a_tensor_too_many(llama: Path):
    rewrite(llama, {"model.layers.2.mlp.up_proj.weight": np.zeros((48, 32), np.float32)})
    with refused(str(llama), "model.layers.2.mlp.up_proj.weight", "not one of this model"):
        HFFolder(llama)


def test_a_tensor_of_another_shape(llama: Path):
    rewrite(llama, {UP: np.zeros((32, 48), np.float32)})
    with refused("model.safetensors", UP, "[32, 48]", "[48, 32]"):
        HFFolder(llama)


@pytest.mark.parametrize("dtype", [np.float64, np.int8, ml_dtypes.float8_e4m3fn])
def test_a_tensor_of_another_dtype(llama: Path, dtype: type):
    rewrite(llama, {UP: np.zeros((48, 32), dtype)})
    with refused("model.safetensors", UP, "dtype", "BF16"):
        HFFolder(llama)


@pytest.mark.parametrize("name", ["dtype", "tensor", "key"])
def test_a_line_end_or_control_character_of_a_file_does_not_reach_the_screen(llama: Path, name: str):
    hostile = "F33\nok\x1b[2J"
    file = llama / "model.safetensors"
    if name == "key":
        copy = json.loads((llama / "config.json").read_text()) | {hostile: 1}
        (llama / "config.json").write_text(json.dumps(copy))
    else:
        values = {"dtype": hostile if name == "dtype" else "I8", "shape": [1], "data_offsets": [0, 1]}
        header = json.dumps({hostile if name == "tensor" else "a": values}).encode()
        file.write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
    with pytest.raises(UserError) as caught:
        HFFolder(llama)
    assert str(caught.value).isprintable() and "ok" in str(caught.value)


def test_sizes_of_config_json_that_are_not_those_of_the_tensors(tmp_path: Path):
    with refused("model.embed_tokens.weight", "[61, 32]", "[62, 32]"):
        HFFolder(copy_of("llama", tmp_path / "model", vocab_size=62))


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [("mixtral", "num_local_experts", 10**8), ("qwen3_moe", "num_local_experts", 2**31 - 1),
     ("llama", "num_hidden_layers", 10_000), ("llama", "vocab_size", 2**31 - 1),
     ("llama", "num_attention_heads", 2**24),
     ("gpt2", "n_positions", 2**31 - 1)],
)  # fmt: skip
def test_counts_that_the_files_do_not_have_are_refused_at_once(tmp_path: Path, name: str, key: str, value: int):
    with refused(str(tmp_path / "model"), "config.json"):
        HFFolder(copy_of(name, tmp_path / "model", **{key: value}))


def test_a_file_that_is_cut_off(llama: Path):
    file = llama / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    with refused("model.safetensors", "no whole safetensors file"):
        HFFolder(llama)


def test_pickles_are_not_read(llama: Path):
    (llama / "model.safetensors").rename(llama / "pytorch_model.bin")
    with refused("pytorch_model.bin", "pickle", "model.safetensors"):
        HFFolder(llama)


def test_a_folder_without_weights(llama: Path):
    (llama / "model.safetensors").unlink()
    with refused(str(llama), "model.safetensors", "model.safetensors.index.json"):
        HFFolder(llama)


def test_shards_hold_what_one_file_does(llama: Path):
    wanted = tensors(llama)
    source = HFFolder(in_shards(llama, 3))
    assert len(source.tensors) == len(wanted)
    for tensor in source.tensors:
        np.testing.assert_array_equal(source.tensor(tensor), wanted[tensor.name])


def test_a_shard_that_is_missing(llama: Path):
    (in_shards(llama) / "model-00002-of-00002.safetensors").unlink()
    with refused("model-00002-of-00002.safetensors", "index.json", "missing"):
        HFFolder(llama)


def test_an_index_that_lists_another_tensor(llama: Path):
    file = in_shards(llama) / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    whole = dict(index["weight_map"])
    file.write_text(json.dumps({"weight_map": {**whole, "extra": "model-00001-of-00002.safetensors"}}))
    with refused("model-00001-of-00002.safetensors", "extra", "missing"):
        HFFolder(llama)
    file.write_text(json.dumps({"weight_map": {name: shard for name, shard in whole.items() if name != UP}}))
    with refused(UP, "does not list"):
        HFFolder(llama)
    file.write_text(json.dumps({"weight_map": {**whole, UP: "../elsewhere.safetensors"}}))
    with refused("index.json", "../elsewhere.safetensors"):
        HFFolder(llama)


def test_the_digest_is_of_each_row_of_a_small_matrix_and_of_each_element_of_a_vector(tmp_path: Path):
    whole = {"matrix": np.zeros((2 * DIGEST_ROWS - 1, 3)), "vector": np.zeros(40), "scalar": np.zeros(())}
    whole = {name: leaf.astype(np.float32) for name, leaf in whole.items()}
    changed = [(name, place) for name, leaf in whole.items() for place in np.ndindex(leaf.shape[:1])]
    digests = []
    for name, place in [*changed, (None, ())]:
        leaves = {own: leaf.copy() for own, leaf in whole.items()}
        if name is not None:
            leaves[name][place] = 1
        save_file(leaves, tmp_path / "model.safetensors")
        digests.append(TensorFiles(tmp_path).digest())
    assert len(set(digests)) == len(digests) == 2 * DIGEST_ROWS - 1 + 40 + 2


def test_a_head_that_repeats_the_embedding_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = copy_of("qwen2", tmp_path / "model")
    rewrite(folder, {"lm_head.weight": tensors(folder)["model.embed_tokens.weight"]})
    source, read = HFFolder(folder), []
    original = TensorFiles.read
    monkeypatch.setattr(
        TensorFiles, "read", lambda self, name, region: read.append(name) or original(self, name, region)
    )
    for tensor in source.tensors:
        source.tensor(tensor)
    assert "model.embed_tokens.weight" in read and "lm_head.weight" not in read


@pytest.mark.parametrize(
    ("name", "embedding"), [("qwen3", "model.embed_tokens.weight"), ("gpt2", "transformer.wte.weight")]
)
def test_a_head_that_differs_from_the_embedding_is_not_tied(name: str, embedding: str, tmp_path: Path):
    """transformers 5.24 does not tie the two then, whatever `tie_word_embeddings` states."""
    folder = copy_of(name, tmp_path / "model", tie_word_embeddings=True)
    head = tensors(folder)[embedding] * 2
    head[:-1] /= 2  # the last row alone differs
    source = HFFolder(rewrite(folder, {"lm_head.weight": head}))
    assert source.model.tied is False and "lm_head.weight" in source.description
    export = plan_export(source)
    assert export.config["tie_word_embeddings"] is False
    check_import(source, export)
    (written,) = (one for one in export.tensors if one.name == "lm_head.weight")
    np.testing.assert_array_equal(export.values(written), head)


def test_a_head_that_repeats_an_embedding_with_nan_is_tied(tmp_path: Path):
    folder = copy_of("qwen3", tmp_path / "model", tie_word_embeddings=True)
    table = tensors(folder)["model.embed_tokens.weight"].copy()
    table[0, 0] = np.nan
    assert HFFolder(rewrite(folder, {"model.embed_tokens.weight": table, "lm_head.weight": table})).model.tied


@pytest.mark.parametrize("name", ["model-00001-of-00002.safetensors", "model.safetensors.index.json", "config.json"])
def test_a_pointer_of_git_lfs_is_called_that(llama: Path, name: str):
    in_shards(llama)
    (llama / name).write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 4976698672\n")
    with refused(name, "Git LFS pointer", "git lfs pull"):
        HFFolder(llama)


def test_gpt2_as_it_was_released(tmp_path: Path):
    """Its names have no prefix, and each layer has the causal mask as a buffer."""
    folder = copy_of("gpt2", tmp_path / "model")
    own = tensors(folder)
    bare = {name.removeprefix("transformer."): leaf for name, leaf in own.items()}
    mask = {"h.0.attn.bias": np.ones((1, 1, 64, 64), np.float32)}
    rewrite(folder, {**dict.fromkeys(own), **bare, **mask})
    old, new = HFFolder(folder), HFFolder(FOLDER / "gpt2")
    for a, b in zip(old.tensors, new.tensors, strict=True):
        assert old.tensor(a).tobytes() == new.tensor(b).tobytes() and a.name == b.name


def test_what_is_no_model_is_refused(tmp_path: Path):
    with refused("run.init_from", "meta-llama/Llama-3.2-1B", "does not exist", "nothing is downloaded"):
        open_source("meta-llama/Llama-3.2-1B", "run.init_from")
    with refused("run.init_from", str(tmp_path), "holds no model"):
        open_source(tmp_path, "run.init_from")
    (tmp_path / "file").touch()
    with refused("MODEL", "is a file"):
        open_source(tmp_path / "file", "MODEL")
    (tmp_path / "config.json").write_text("[]")
    with refused("config.json", "mapping"):
        open_source(tmp_path, "MODEL")
    (tmp_path / "config.json").write_text("{")
    with refused("config.json:1", "not valid JSON"):
        open_source(tmp_path, "MODEL")

"""A folder in Hugging Face's format is checked whole before a weight is read; what is wrong with it is named."""

import json
import shutil
from collections.abc import Callable
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
from tests.goldens.loading import FOLDER, NAMES
from tests.interop.folders import copy_of, in_shards, rewrite, tensors
from tests.sentences import refused

UP = "model.layers.1.mlp.up_proj.weight"
SECOND = "model-00002-of-00002.safetensors"


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A folder to break."""
    return copy_of("llama", tmp_path / "model")


def listing(folder: Path, **changed: str | None) -> None:
    """The folder in shards, whose index lists some tensors in another file, or by None not at all."""
    file = in_shards(folder) / "model.safetensors.index.json"
    listed = json.loads(file.read_text())["weight_map"] | changed
    file.write_text(json.dumps({"weight_map": {name: shard for name, shard in listed.items() if shard is not None}}))


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-4])


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_has_the_tensors_of_its_table(name: str):
    table = HFFolder(FOLDER / name).tensors
    constants = {other for one in table for other, _ in one.constants}
    assert {one.name for one in table} | constants == tensors(FOLDER / name).keys()


WEIGHTS, EXTRA = "model.safetensors", "model.layers.2.mlp.up_proj.weight"
BETA, SHARD, INDEX = "model.layers.1.mlp.act_fn.beta", "model-00001-of-00002.safetensors", f"{WEIGHTS}.index.json"
NORM, NORM_TOO = "language_model.model.norm.weight", "model.language_model.norm.weight"
HEAD, MORE = "language_model.lm_head.weight", "model.layers.0.more.weight"
FURTHER, LLAVA = "model.layers.4.eh_proj.weight", "multimodal/llava"


def pointer(file: Path) -> None:
    """What Git LFS leaves in the place of a file."""
    file.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 4976698672\n")


BROKEN: dict[str, tuple[str, Callable[[Path], object], tuple[str, ...]]] = {
    "missing": ("llama", lambda at: rewrite(at, {UP: None, "model.norm.weight": None}), (UP, "missing", "1 more")),
    "too many": ("llama", lambda at: rewrite(at, {EXTRA: np.zeros((48, 32), "f4")}), (EXTRA, "not one of this model")),
    "shape": ("llama", lambda at: rewrite(at, {UP: np.zeros((32, 48), "f4")}), (WEIGHTS, UP, "[32, 48]", "[48, 32]")),
    "float64": ("llama", lambda at: rewrite(at, {UP: np.zeros((48, 32))}), (WEIGHTS, UP, "dtype", "BF16")),
    "int8": ("llama", lambda at: rewrite(at, {UP: np.zeros((48, 32), np.int8)}), (WEIGHTS, UP, "dtype", "BF16")),
    "float8": ("llama", lambda at: rewrite(at, {UP: np.zeros((48, 32), ml_dtypes.float8_e4m3fn)}),
        (UP, "dtype", "BF16")),
    "cut off": ("llama", lambda at: cut(at / WEIGHTS), (WEIGHTS, "no whole safetensors file")),
    "a pickle": ("llama", lambda at: (at / WEIGHTS).rename(at / "pytorch_model.bin"),
        ("pytorch_model.bin", "pickle", WEIGHTS)),
    "no weights": ("llama", lambda at: (at / WEIGHTS).unlink(), (WEIGHTS, INDEX)),
    "no shard": ("llama", lambda at: (in_shards(at) / SECOND).unlink(), (SECOND, "index.json", "missing")),
    "an index of more": ("llama", lambda at: listing(at, extra=SECOND), (SECOND, "extra", "missing")),
    "an index of less": ("llama", lambda at: listing(at, **{UP: None}), (UP, "does not list")),
    "an index of files elsewhere": ("llama", lambda at: listing(at, **{UP: "../a.safetensors"}),
        ("index.json", "../a.safet")),
    **{f"a pointer in place of {name}": ("llama", lambda at, name=name: pointer(in_shards(at) / name),
        (name, "Git LFS pointer", "git lfs pull")) for name in (SHARD, INDEX, "config.json")},
    "another shared number": ("apertus", lambda at: rewrite(at, {BETA: np.asarray(0.25, "f4")}), (BETA, "0.5")),
    "a shared number in a list": ("apertus", lambda at: rewrite(at, {BETA: np.full(1, 0.5, "f4")}), (BETA, "0.5")),
    "a layer for further tokens too many": ("deepseek_v3", lambda at: rewrite(at, {FURTHER: np.zeros((32, 64), "f4")}),
        (FURTHER, "not one of this model")),
    "two names of a norm": (LLAVA, lambda at: rewrite(at, {NORM_TOO: tensors(at)[NORM] * 2}),
        (NORM, NORM_TOO, "the same one")),
    "two names of a head": (LLAVA, lambda at: rewrite(at, {"lm_head.weight": tensors(at)[HEAD] * 2}),
        (HEAD, "lm_head.weight", "the same one")),
    "more in a text part": (LLAVA, lambda at: rewrite(at, {f"language_model.{MORE}": np.zeros(3, "f4")}),
        (MORE, "not one of this model")),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_wrong_with_a_folder_is_named(case: str, tmp_path: Path):
    golden, breaks, parts = BROKEN[case]
    breaks(folder := copy_of(golden, tmp_path / "model"))
    with refused(str(folder), *parts):
        HFFolder(folder)


def test_a_number_that_all_models_of_a_family_share_may_be_absent(tmp_path: Path):
    HFFolder(rewrite(copy_of("apertus", tmp_path / "model"), {BETA: None}))


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


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [("llama", "vocab_size", 62), ("mixtral", "num_local_experts", 10**8),
     ("qwen3_moe", "num_local_experts", 2**31 - 1),
     ("llama", "num_hidden_layers", 10_000), ("llama", "vocab_size", 2**31 - 1),
     ("llama", "num_attention_heads", 2**24),
     ("gpt2", "n_positions", 2**31 - 1)],
)  # fmt: skip
def test_sizes_that_the_files_do_not_have_are_refused_at_once(tmp_path: Path, name: str, key: str, value: int):
    with refused(str(tmp_path / "model"), "config.json"):
        HFFolder(copy_of(name, tmp_path / "model", **{key: value}))


def test_shards_hold_what_one_file_does(llama: Path):
    wanted = tensors(llama)
    source = HFFolder(in_shards(llama, 3))
    assert len(source.tensors) == len(wanted)
    for tensor in source.tensors:
        np.testing.assert_array_equal(source.tensor(tensor), wanted[tensor.name])


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
    with refused("run.init_from", "meta-llama/Llama-3.2-1B", "does not exist", "hf://NAME"):
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


def test_tensors_that_transformers_leaves_out_are_told(tmp_path: Path):
    folder = rewrite(copy_of("qwen3_next", tmp_path / "model"), {"mtp.fc.weight": np.zeros((2, 2), np.float32)})
    assert HFFolder(folder).remarks == ["without 1 tensor mtp.*"]


def test_bert_as_it_was_released(tmp_path: Path):
    """Norms have beta and gamma; a pooler and a head for pairs of sentences are beside the rest."""
    folder = copy_of("bert", tmp_path / "model")
    new = tensors(folder)
    named = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    old = {name: next((name.replace(a, b) for a, b in named.items() if a in name), name) for name in new}
    beside = ("bert.pooler.dense.weight", "bert.pooler.dense.bias", "cls.seq_relationship.weight")
    more = dict.fromkeys(beside, np.zeros((2, 2), np.float32))
    rewrite(folder, {**dict.fromkeys(new), **{old[name]: leaf for name, leaf in new.items()}, **more})
    source = HFFolder(folder)
    assert source.remarks == ["without 3 tensors bert.pooler.*, cls.seq_relationship.*"]
    for tensor in source.tensors:
        np.testing.assert_array_equal(source.tensor(tensor), new[tensor.name])


def test_decays_that_transformers_writes_beside_weights_are_not_read(tmp_path: Path):
    name = "model.layers.0.self_attn.slope_rate"
    folder = rewrite(copy_of("minimax", tmp_path / "model"), {name: np.ones((4, 1, 1), np.float32)})
    source = HFFolder(folder)
    assert name not in [one.name for one in source.tensors] and not source.remarks


def test_a_tensor_may_have_the_other_name_that_transformers_writes(tmp_path: Path):
    folder, name = shutil.copytree(FOLDER / "kimi_linear", tmp_path / "model"), "model.layers.0.{}.up_proj.weight"
    values = tensors(folder)[name.format("mlp")]
    rewrite(folder, {name.format("mlp"): None, name.format("block_sparse_moe"): values})
    region = tuple(slice(0, size) for size in values.T.shape)
    np.testing.assert_array_equal(HFFolder(folder).read("layers.mlp.up", [0], region)[0], values.T)

"""An export is the folder that was imported, byte for byte, by whichever way; an interrupted one leaves nothing."""

import json
from pathlib import Path

import numpy as np
import pytest

from jaxpar.convert import main
from jaxpar.interop.conversion.export import Export, plan_export
from jaxpar.interop.sources.hf_folder import HFFolder
from tests.goldens.loading import FOLDER, NAMES
from tests.interop.folders import copy_of, tensors
from tests.sentences import refused_by_command

FILES = ("config.json", "generation_config.json", "model.safetensors")


def convert(*arguments: object) -> None:
    """Run the command, which succeeds."""
    assert main([str(argument) for argument in arguments]) == 0


@pytest.mark.matrix(quick=("gpt2", "gpt_oss"), ci=4, always=True)
@pytest.mark.parametrize("name", NAMES)
def test_a_folder_comes_back_byte_for_byte(name: str, tmp_path: Path):
    files = [file for file in FILES if (FOLDER / name / file).exists()]
    convert("hf-to-jaxpar", FOLDER / name, tmp_path / "ours")
    convert("jaxpar-to-hf", tmp_path / "ours", tmp_path / "theirs")
    convert("jaxpar-to-hf", FOLDER / name, tmp_path / "at once")
    for written in ("theirs", "at once"):
        assert sorted(file.name for file in (tmp_path / written).iterdir()) == sorted(files)
        for file in files:
            assert (tmp_path / written / file).read_bytes() == (FOLDER / name / file).read_bytes(), file


@pytest.mark.matrix(quick=("gemma3", "mamba2", "mixtral", "nemotron_h", "phi3", "qwen3_next"), ci=8, always=True)
@pytest.mark.parametrize("name", NAMES)
def test_both_ways_in_memory(name: str, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted((FOLDER / name).iterdir())
    convert("hf-to-jaxpar", FOLDER / name, "--check")
    convert("jaxpar-to-hf", FOLDER / name, "--check")
    assert capfd.readouterr().out.count("the same bits both ways") == 2
    assert not list(tmp_path.iterdir()) and sorted((FOLDER / name).iterdir()) == before


def test_the_check_notices_a_dtype_that_cannot_hold_the_weights(capfd: pytest.CaptureFixture[str]):
    status = main(["jaxpar-to-hf", str(FOLDER / "llama"), "--check", "--dtype", "bfloat16"])
    refused_by_command(status, *capfd.readouterr(), "embedding.tokens", "bfloat16", "--dtype float32")


def test_an_export_in_another_dtype_reports_it_in_config_json(tmp_path: Path):
    convert("jaxpar-to-hf", FOLDER / "llama", tmp_path / "half", "--dtype", "bfloat16")
    assert json.loads((tmp_path / "half/config.json").read_text())["dtype"] == "bfloat16"
    wanted = tensors(FOLDER / "llama")
    for name, leaf in tensors(tmp_path / "half").items():
        assert leaf.dtype.name == "bfloat16"
        np.testing.assert_array_equal(leaf, wanted[name].astype(leaf.dtype))


def test_shards_of_a_stated_size_have_an_index(tmp_path: Path):
    """The largest tensor has 61 * 32 * 4 = 7,808 bytes: shards of 20,000 bytes hold several."""
    export = plan_export(HFFolder(FOLDER / "llama"))
    files = export.write(tmp_path, shard_bytes=20_000)
    assert len(files) > 3 and files[0].name == f"model-00001-of-{len(files):05d}.safetensors"
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 4 * export.parameters
    wanted, found = tensors(FOLDER / "llama"), {}
    for file in files:
        own = tensors(file)
        assert sum(leaf.nbytes for leaf in own.values()) <= 20_000
        assert {name: index["weight_map"][name] for name in own} == dict.fromkeys(own, file.name)
        found |= own
    assert found.keys() == wanted.keys() == index["weight_map"].keys()
    assert all(found[name].tobytes() == wanted[name].tobytes() for name in wanted)
    assert len(HFFolder(tmp_path).tensors) == len(wanted), "and it is read again"


def test_the_files_of_a_tokenizer_are_copied(tmp_path: Path):
    folder = copy_of("llama", tmp_path / "model")
    (folder / "tokenizer.json").write_text('{"a": 1}')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "generation_config.json").unlink()
    convert("hf-to-jaxpar", folder, tmp_path / "ours")
    convert("jaxpar-to-hf", tmp_path / "ours", tmp_path / "theirs")
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (tmp_path / "theirs" / name).read_bytes() == (folder / name).read_bytes()
    made = json.loads((tmp_path / "theirs/generation_config.json").read_text())
    assert made["_from_model_config"] is True and made["eos_token_id"] == 2, "from config.json where there was none"


def test_an_export_that_fails_leaves_no_folder(tmp_path, monkeypatch, capfd):
    whole, seen = Export.values, []

    def fails(self: Export, tensor: object) -> np.ndarray:
        seen.append(tensor)
        assert not (tmp_path / "out").exists(), "it appears when it is complete"
        if len(seen) == 5:
            raise OSError(28, "No space left on device")
        return whole(self, tensor)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(Export, "values", fails)
    status = main(["jaxpar-to-hf", str(FOLDER / "llama"), str(tmp_path / "out")])
    refused_by_command(status, *capfd.readouterr(), str(tmp_path / "out"), "No space left")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ("hf-to-jaxpar {golden}", ("OUT", "--check")),
        ("hf-to-jaxpar {golden} {new} --check", ("OUT", "--check")),
        ("hf-to-jaxpar {golden} {old}", ("OUT", "exists")),
        ("hf-to-jaxpar {golden} {old}/a/b", ("OUT", "does not exist")),
        ("hf-to-jaxpar {old} {new}", ("MODEL", "holds no model")),
        ("hf-to-jaxpar {golden} {new} --dtype float32", ("--dtype", "jaxpar-to-hf")),
        ("jaxpar-to-hf {golden} {new} --dtype bf16", ("--dtype", "bf16", "bfloat16")),
        ("jaxpar-to-hf {golden} {new} --shard-size 5", ("--shard-size", "'5'", "GB")),
    ],
)
def test_what_the_command_refuses(arguments: str, parts: tuple[str, ...], tmp_path, capfd):
    (tmp_path / "old").mkdir()
    given = {"golden": FOLDER / "llama", "new": tmp_path / "new", "old": tmp_path / "old"}
    status = main([word.format(**given) for word in arguments.split()])
    refused_by_command(status, *capfd.readouterr(), *parts)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]

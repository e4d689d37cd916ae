"""An export has the tokenizer and the chat template that the model was trained with."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from jaxpar.config import DataConfig
from jaxpar.convert import main
from jaxpar.data.chat.template import template_beside, templates_beside
from jaxpar.interop.conversion.converted import write_weights
from jaxpar.interop.sources.hf_folder import HFFolder
from tests.data.chat_files import MARKED, TOKENIZER, prepared_chat, turns
from tests.data.folders import END, prepared, texts
from tests.goldens.loading import FOLDER
from tests.interop.folders import copy_of
from tests.small_run import small


def export_of_run(folder: Path, data: Path, init_from: Path | None) -> Path:
    """The export of a run on a token folder, whose weights are those of the golden `llama`."""
    source = HFFolder(FOLDER / "llama")
    config = small(run={"init_from": None if init_from is None else str(init_from)})
    config = replace(config, model=source.model, data=DataConfig(source="tokens", path=str(data)))
    write_weights(source, config, {}, folder / "run", print)
    assert main(["jaxpar-to-hf", str(folder / "run"), str(folder / "export")]) == 0
    return folder / "export"


def test_a_run_that_began_at_random_has_the_tokenizer_of_its_data(tmp_path: Path):
    folder = prepared(tmp_path / "tokens", texts(20))
    out = export_of_run(tmp_path, folder.path, None)
    assert (out / "tokenizer.json").read_bytes() == (folder.path / "tokenizer.json").read_bytes()
    settings = json.loads((out / "tokenizer_config.json").read_text())
    assert settings == {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END}
    for name in ("config.json", "generation_config.json"):
        assert json.loads((out / name).read_text())["eos_token_id"] == folder.index.separator
    assert template_beside(out) is None


def model_with_tokenizer(to: Path) -> Path:
    base = copy_of("llama", to)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER.with_name(name), base / name)
    return base


def test_the_template_of_the_conversations_goes_with_the_models_own_tokenizer(tmp_path: Path):
    base, given = model_with_tokenizer(tmp_path / "base"), tmp_path / "template.jinja"
    given.write_text(MARKED)
    lines = [{"messages": turns("capital of peru?", "lima.")}]
    chosen = prepared_chat(tmp_path / "chosen", lines, chat_template=str(given))
    own = prepared_chat(tmp_path / "own", lines)
    for folder, template in ((chosen, MARKED), (own, None)):
        (tmp_path / folder.path.name / "out").mkdir()
        out = export_of_run(tmp_path / folder.path.name / "out", folder.path, base)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            assert (out / name).read_bytes() == (base / name).read_bytes(), name
        found = template_beside(out)
        assert found is not None
        assert found.source == MARKED if template else not (out / "chat_template.jinja").exists()


def test_further_templates_of_the_models_tokenizer_go_with_an_export(tmp_path: Path):
    base = model_with_tokenizer(tmp_path / "base")
    (base / "additional_chat_templates").mkdir()
    (base / "additional_chat_templates" / "rag.jinja").write_text("r")
    assert main(["hf-to-jaxpar", str(base), str(tmp_path / "converted")]) == 0
    assert main(["jaxpar-to-hf", str(tmp_path / "converted"), str(tmp_path / "out")]) == 0
    assert templates_beside(tmp_path / "out")["rag"].source == "r"


def test_another_tokenizer_that_the_run_was_trained_with_is_the_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    base = model_with_tokenizer(tmp_path / "base")
    folder = prepared(tmp_path / "tokens", texts(20))
    out = export_of_run(tmp_path, folder.path, base)
    assert (out / "tokenizer.json").read_bytes() == (folder.path / "tokenizer.json").read_bytes()
    assert json.loads((out / "tokenizer_config.json").read_text())["eos_token"] == END
    printed = capfd.readouterr().out
    assert str(folder.path) in printed and str(base) in printed and "tokenizer" in printed


def test_a_folder_of_data_that_is_gone_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    out = export_of_run(tmp_path, tmp_path / "gone", None)
    assert not (out / "tokenizer.json").exists()
    printed = capfd.readouterr().out
    assert str(tmp_path / "gone") in printed and "No tokenizer is known" in printed

"""The tokens that begin and end a text are those that a model's own files name."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tokenizers import Tokenizer, processors

from jaxpar.config import urls
from jaxpar.config.schema import Config, DataConfig
from jaxpar.evaluation.language_model import LanguageModel
from jaxpar.interop.sources.hf_folder import HFFolder
from jaxpar.interop.sources.tokenizer import chat_encoder_of, text_of, tokenizer_folders
from tests.data.chat_files import prepared_chat, turns
from tests.goldens.chat.generate import BEGIN_TURN, END
from tests.goldens.loading import FOLDER
from tests.sentences import refused

BOS, EOS = 1, 2


def model_with(folder: Path, tokenizer: str | None, generation: dict[str, object]) -> HFFolder:
    shutil.copytree(FOLDER / "llama", folder)
    if tokenizer is not None:
        for file in (FOLDER / "evaluation" / tokenizer).iterdir():
            shutil.copy(file, folder)
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return HFFolder(folder)


def test_a_text_begins_as_the_tokenizer_states_and_ends_as_the_model_states_too(tmp_path: Path):
    marked = text_of(model_with(tmp_path / "a", "marked", {"eos_token_id": [7, EOS]}), None, print)
    assert (marked.begin, marked.stops) == (BOS, (EOS, 7))
    plain = text_of(model_with(tmp_path / "b", "plain", {"eos_token_id": 9}), None, print)
    assert (plain.begin, plain.stops) == (EOS, (EOS, 9)), "without a beginning, the end of another text"
    given = text_of(model_with(tmp_path / "c", None, {}), tmp_path / "a" / "tokenizer.json", print)
    assert (given.begin, given.stops) == (BOS, (EOS,))


def test_names_of_special_tokens_are_text_unless_they_are_asked_for(tmp_path: Path):
    model = model_with(tmp_path / "a", "marked", {})
    text, asked = text_of(model, None, print), text_of(model, None, print, special_tokens=True)
    tokens = text.encode("cat")
    assert asked.encode("cat<eos>") == [*tokens, EOS] and asked.encode("cat") == tokens
    assert EOS not in text.encode("cat<eos>") and text.decode([BOS, *tokens, EOS]) == "cat"
    assert text.encode_start("cat") == asked.encode_start("cat") == asked.encode_start("<bos>cat") == [BOS, *tokens]
    assert text.encode_start("<bos>") == [BOS, *text.encode("bos")], "its letters behind the token"
    assert text.special == {"<pad>": 0, "<bos>": BOS, "<eos>": EOS}


def test_ends_of_config_json_count_where_there_is_no_generation_config(tmp_path: Path):
    model_with(folder := tmp_path / "a", "marked", {"eos_token_id": 9})
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token_id": [EOS, 7]}))
    assert text_of(HFFolder(folder), None, print).stops == (EOS, 9)
    (folder / "generation_config.json").unlink()
    assert text_of(HFFolder(folder), None, print).stops == (EOS, 7)


@pytest.mark.parametrize(
    ("template", "before"), [("<bos> $A <eos>", [BOS]), ("$A <eos>", []), ("<pad> <bos> $A <eos>", [0, BOS])]
)
def test_what_a_tokenizer_puts_behind_a_text_is_never_added(tmp_path: Path, template: str, before: list[int]):
    """So that no end of a text stands between a context and what continues it."""
    model = model_with(tmp_path / "a", "marked", {})
    file = tmp_path / "a" / "tokenizer.json"
    made: Any = Tokenizer.from_file(str(file))
    made.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[("<pad>", 0), ("<bos>", BOS), ("<eos>", EOS)]
    )
    made.save(str(file))
    text = text_of(model, None, print)
    assert text.encode_start("cat") == [*before, *text.encode("cat")] and text.encode_start("") == before
    language = LanguageModel(cast(Any, None), text, 8)
    context, scored = language.encoded_pair("cat", " sat")
    assert EOS not in context + scored and context[: len(before)] == before
    assert context + scored == text.encode_start("cat sat")


def test_the_tokenizer_that_a_flag_names_may_be_a_folder(tmp_path: Path):
    model, folder = model_with(tmp_path / "a", None, {}), FOLDER / "evaluation" / "marked"
    found = [text_of(model, path, print).name for path in (folder, folder / "tokenizer.json")]
    assert found == [str(folder / "tokenizer.json")] * 2
    with refused("chat template", "--chat-template"):
        chat_encoder_of(model, folder, None, print)
    with refused("none/tokenizer.json", "does not exist"):
        (tmp_path / "none").mkdir()
        text_of(model, tmp_path / "none", print)


def test_the_tokenizer_of_streamed_text_is_that_of_its_run():
    folder = FOLDER / "evaluation" / "marked"
    for path in (folder, folder / "tokenizer.json"):
        data = DataConfig(source="stream", path="web", tokenizer=str(path), end_token="<bos>")
        run = cast(Any, SimpleNamespace(origin=None, path="run", config=Config(data=data)))
        text = text_of(run, None, print)
        assert text.name == str(folder / "tokenizer.json") and text.stops[0] == BOS
        assert text.decode(text.encode("cat sat")) == "cat sat"
        assert tokenizer_folders(run, print) == [folder]


def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path):
    source = model_with(tmp_path / "a", "plain", {})
    (tmp_path / "a" / "tokenizer_config.json").write_text("[]")
    with refused("tokenizer_config.json", "mapping"):
        text_of(source, None, print)


def test_a_model_without_a_tokenizer_is_refused(tmp_path: Path):
    with refused("--tokenizer", "tokenizer.json"):
        text_of(model_with(tmp_path / "a", None, {}), None, print)


def trained_on(data: DataConfig) -> Any:
    """A run with these data that began with weights of its own."""
    config = SimpleNamespace(data=data, run=SimpleNamespace(init_from=None))
    return SimpleNamespace(path=Path("run"), origin=None, config=config)


def test_in_a_conversation_a_text_also_ends_as_documents_of_the_run_do(tmp_path: Path):
    folder = prepared_chat(tmp_path / "chat", [{"messages": turns("a", "b")}], separator=BEGIN_TURN)
    gone, reports = tmp_path / "gone", []
    sources = {str(gone): 1.0, str(folder.path): 1.0}
    for data in (DataConfig(source="tokens", path=str(folder.path)), DataConfig(source="tokens", sources=sources)):
        encoder, text = chat_encoder_of(trained_on(data), None, None, reports.append)
        encoder.close()
        assert text.stops == (text.special[END], folder.index.separator) and folder.index.separator != text.special[END]
    (reported,) = reports
    assert str(gone) in reported, "once, of the folder that is missing"
    with refused("--tokenizer", "tokenizer.json"):
        chat_encoder_of(trained_on(DataConfig(source="tokens", path=str(gone))), None, None, reports.append)
    assert len(reports) == 2


def test_the_tokenizer_is_looked_for_elsewhere_where_the_tokens_are_at_a_url_that_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(urls, "STORES", ("memory",))
    monkeypatch.setenv("JAXPAR_CACHE", str(tmp_path))
    reports: list[str] = []
    data = DataConfig(source="tokens", path="memory://gone/tokens")
    assert tokenizer_folders(trained_on(data), reports.append) == []
    assert "memory://gone/tokens" in " ".join(reports)

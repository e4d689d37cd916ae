"""Token folders as data: alone or mixed, with their tokenizer, their validation documents and their vocabulary."""

import json
import shutil

import numpy as np
import pytest

from jaxpar.config.schema import DataConfig
from jaxpar.config.schema.training import LaterSources
from jaxpar.data import token_sources
from jaxpar.data.mixture import Mixture
from jaxpar.data.packing import PackedRows
from jaxpar.data.sources import open_data
from tests.data.folders import prepared, texts, write_tokenizer
from tests.sentences import refused


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("sources")
    other = write_tokenizer(root / "other.json", more=("<x>",))
    prepared(root / "a", texts(80, seed=1))
    prepared(root / "b", texts(40, seed=2))
    prepared(root / "bare", texts(40, seed=3), validation_fraction=0.0)
    prepared(root / "other", texts(40, seed=4), tokenizer=other)
    np.save(root / "plain.npy", np.arange(100, dtype=np.uint16))
    return root


def config(path=None, **changes) -> DataConfig:
    return DataConfig(**({"source": "tokens", "path": path and str(path), "sequence_length": 16} | changes))


def test_a_folder_is_data_with_text_and_a_split(folders):
    data = open_data(config(folders / "a"), vocab=None, seed=0)
    assert isinstance(data.train, PackedRows) and isinstance(data.validation, PackedRows)
    assert (data.vocab, data.separator) == (257, 256)
    assert data.encode_start is not None and data.decode is not None
    assert data.decode([*data.encode_start("a word"), 256]) == "a word"
    train, validation = data.train.stream, data.validation.stream
    assert data.description == (
        f"{folders / 'a'}: {len(train):,} tokens in {len(train.starts)} documents to train on, "
        f"{len(validation):,} in {len(validation.starts)} for validation"
    )
    assert data.train.epochs(data.train.rows_per_epoch * 3) == {str(folders / "a"): 3.0}


def test_sources_are_mixed_and_all_validation_documents_are_evaluated(folders):
    a, b = str(folders / "a"), str(folders / "b")
    data = open_data(config(sources={a: 3, b: 1}), vocab=None, seed=0)
    alone = [open_data(config(path), vocab=None, seed=0) for path in (a, b)]
    assert isinstance(data.train, Mixture) and data.train.epochs(0) == {a: 0.0, b: 0.0}
    assert data.description.startswith(f"75.0% {a}: ")
    validation = np.concatenate([each.validation.stream.tokens[:] for each in alone])
    assert data.validation is not None
    np.testing.assert_array_equal(data.validation.stream.tokens[:], validation)
    changed = open_data(config(sources={b: 1, a: 1}), vocab=None, seed=0)
    assert changed.validation is not None
    assert sorted(changed.validation.stream.lengths) == sorted(data.validation.stream.lengths)
    found, row = data.train.source_row(11)
    for name, values in alone[found.name == b].train.row(row).items():
        np.testing.assert_array_equal(data.train.row(11)[name], values)


def test_weights_change_and_folders_leave_as_configured(folders):
    a, b = str(folders / "a"), str(folders / "b")
    later = (LaterSources(after=10, sources={a: 1, b: 1}),)
    data = open_data(config(sources={a: 1}, later_sources=later, max_epochs={b: 0.5}), vocab=None, seed=0)
    assert isinstance(data.train, Mixture)
    (first, before), (second, both), (last_first, last) = data.train.phases
    assert (first, second) == (0, 80) and before[b] == last[b] == 0 and both == {a: 1, b: 1}
    assert f"from row 80 on 50.0% {a}, 50.0% {b}; from row {last_first:,} on 100.0% {a}; " in data.description
    assert data.train.epochs(10**6)[b] <= 0.5 and data.examples is None


def test_validation_documents_may_come_from_another_folder(folders):
    data = open_data(config(folders / "bare"), vocab=None, seed=0)
    assert data.validation is None and data.description.endswith("nothing for validation")
    other = open_data(config(folders / "bare", validation_path=str(folders / "a")), vocab=None, seed=0)
    of_a = open_data(config(folders / "a"), vocab=None, seed=0).validation
    assert other.validation is not None and of_a is not None
    np.testing.assert_array_equal(other.validation.stream.tokens[:], of_a.stream.tokens[:])
    whole = open_data(config(folders / "a", validation_path=str(folders / "bare")), vocab=None, seed=0)
    assert whole.validation is not None and len(whole.validation.stream.starts) == 40


def test_several_sets_are_evaluated_by_their_names(folders):
    sets = {"own": str(folders / "a"), "bare": str(folders / "bare")}
    data = open_data(config(folders / "b", validation=sets), vocab=None, seed=0)
    alone = {
        name: open_data(config(folders / "b", validation_path=path), vocab=None, seed=0).validation
        for name, path in sets.items()
    }
    assert list(data.evaluated) == ["own", "bare"] and data.validation is data.evaluated["own"]
    for name, rows in data.evaluated.items():
        np.testing.assert_array_equal(rows.row(3)["tokens"], alone[name].row(3)["tokens"])
    assert "own: " in data.description and data.description.endswith("in 40 for validation")


def test_validation_documents_that_are_less_than_a_row_are_reported(folders):
    data = open_data(config(folders / "b", sequence_length=1000), vocab=None, seed=0)
    assert data.validation is None and "nothing for validation (" in data.description
    assert data.description.endswith("which has 409 tokens; expected at most 409, or more data)")


def test_a_model_may_leave_room_in_its_vocabulary(folders):
    assert open_data(config(folders / "a"), vocab=257, seed=0).vocab == 257
    assert open_data(config(folders / "a"), vocab=264, seed=0).vocab == 264


def test_without_the_package_samples_are_token_numbers(folders, monkeypatch):
    monkeypatch.setattr(token_sources, "tokenizers_installed", lambda: False)
    data = open_data(config(folders / "a"), vocab=None, seed=0)
    assert (data.decode, data.encode_start) == (None, None)
    assert data.description.endswith("; the package tokenizers is not installed, so samples are shown as token numbers")


@pytest.mark.parametrize(
    ("keys", "vocab", "parts"),
    [
        ({"path": "a"}, 200, ("model.vocab=200", "data.path=", "257", "expected")),
        ({"path": "a"}, 50257, ("model.vocab=50257", "expected 257", "up to 269", "null")),
        ({"path": "a", "separator": 3}, None, ("data.separator=3", "expected 256")),
        ({"sources": ["a", "other"]}, None, ("other'", "another tokenizer", "a'", "expected")),
        ({"path": "a", "validation_path": "other"}, None, ("data.validation_path=", "other'", "another tokenizer")),
        ({"path": "a", "validation_path": "plain.npy"}, None,
         ("data.validation_path=", "plain.npy'", "not a token folder")),
        ({"path": "plain.npy", "validation_path": "a"}, None,
         ("validation_path=", "a' is a folder", "data.path is a file")),
        ({"path": "a", "validation": {"x": "other"}}, None, ("data.validation.x=", "other'", "another tokenizer")),
        ({"path": "plain.npy", "validation": {"x": "a"}}, None, ("data.validation names", "data.path is a file")),
        ({"sources": ["a", "plain.npy"]}, None, ("data.sources: ", "plain.npy'", "not a folder", "a token folder")),
        ({"sources": ["a", "gone"]}, None, ("data.sources: ", "gone'", "does not exist", "expected a token folder")),
        ({"sources": ["a", "copy"]}, None, ("copy'", "a'", "the same tokens")),
        ({"path": "b", "sequence_length": 10**6}, None, ("data.sequence_length", "1000000", "b, which has", "tokens")),
        ({"path": "empty"}, None, ("data.path=", "empty'", "no index.json")),
        ({"path": "gone"}, None, ("data.path=", "gone' does not exist")),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_sentence(folders, keys, vocab, parts):
    if not (folders / "copy").exists():
        shutil.copytree(folders / "a", folders / "copy")
        (folders / "empty").mkdir()
    named = {
        key: {str(folders / name): 1.0 for name in value} if key == "sources" else
        {name: str(folders / path) for name, path in value.items()} if key == "validation" else
        str(folders / value) if isinstance(value, str) else value
        for key, value in keys.items()
    }  # fmt: skip
    with refused(*parts):
        open_data(config(**named), vocab=vocab, seed=0)


@pytest.mark.parametrize("mixed", [False, True])
def test_data_continues_in_the_order_that_its_run_began_with(folders, mixed):
    a, b = str(folders / "a"), str(folders / "b")
    data = open_data(config(**{"sources": {a: 3, b: 1}} if mixed else {"path": a}), vocab=None, seed=4)
    facts = json.loads(json.dumps(data.facts))
    assert facts["shuffle"] == 3 and (facts["mixture"] is not None) == mixed

    def tokens(of) -> list[list[int]]:
        return [of.train.row(example)["tokens"].tolist() for example in range(20, 30)]

    assert tokens(data.continued(facts, 20)) == tokens(data)
    before = data.continued(facts | {"shuffle": 1}, 20)
    assert before.facts == facts | {"shuffle": 1}
    again = data.continued(json.loads(json.dumps(before.facts)), 20)
    assert tokens(again) == tokens(before) != tokens(data)
    if not mixed:
        first = PackedRows(data.train.stream, sequence_length=16, packed=True, seed=4, shuffle=1)
        assert tokens(before) == [first.row(example)["tokens"].tolist() for example in range(20, 30)]
    assert before.validation is data.validation and data.validation is not None and data.validation.shuffle == 1
    with refused("version 4", "1, 2 or 3", "the release that saved it"):
        data.continued(facts | {"shuffle": 4}, 20)


def test_generated_text_has_no_order_to_continue():
    data = open_data(DataConfig(source="synthetic", sequence_length=16), vocab=None, seed=4)
    assert data.facts == {"shuffle": None, "mixture": None} and data.continued(data.facts, 5).train is data.train

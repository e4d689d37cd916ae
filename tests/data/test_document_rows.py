"""Conversations are whole in their rows, or truncated at one end, and every row has a token that the loss counts."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpar.config.schema import DataConfig
from jaxpar.data import Data, batch_rows, open_data
from jaxpar.data.document_rows import DocumentRows
from jaxpar.data.prepare.output.tokenize import is_validation
from jaxpar.data.stream import TokenStream
from tests.data.chat_files import TOKENIZER, prepared_chat, turns
from tests.data.folders import prepared
from tests.data.preference_files import prepared_pairs
from tests.goldens.chat.generate import conversations
from tests.sentences import refused

LONG = {"drop": "left out", "truncate_start": "truncated at the beginning", "truncate_end": "truncated at the end"}


def stream_of(documents: list[list[bool]]) -> TokenStream:
    """Documents with what is counted of each; each token is its own number, so that a token states where it is from."""
    ends = np.cumsum([len(document) for document in documents])
    counted = np.array([one for document in documents for one in document], np.uint8)
    return TokenStream(np.arange(100, 100 + ends[-1], dtype=np.uint16), np.append(0, ends[:-1]), counted)


def in_rows(documents: list[list[bool]], length: int, long: str) -> dict[int, list[tuple[int, int]]]:
    """By the slow way: the first token of each document in a row to its (token, label), -1 for one that is masked."""
    found, first = {}, 100
    for counted in documents:
        tokens = list(zip(range(first, first + len(counted)), counted, strict=True))
        first += len(counted)
        if len(tokens) > length + 1:
            tokens = {"drop": [], "truncate_start": tokens[-length - 1 :], "truncate_end": tokens[: length + 1]}[long]
        if any(counts for _, counts in tokens[1:]):
            found[tokens[0][0]] = [(token, label if counts else -1) for (token, _), (label, counts) in pairwise(tokens)]
    return found


@settings(max_examples=200, deadline=None)
@given(
    documents=st.lists(st.lists(st.booleans(), min_size=1, max_size=9), min_size=1, max_size=9),
    length=st.integers(1, 12),
    long=st.sampled_from(sorted(LONG)),
    seed=st.integers(0, 2**40),
    chunk=st.integers(1, 20),
)
def test_an_epoch_has_each_document_once_and_each_row_counts_a_token(documents, length, long, seed, chunk):
    wanted, found = in_rows(documents, length, long), {}
    made = lambda: DocumentRows(stream_of(documents), sequence_length=length, seed=seed, long=long, chunk_tokens=chunk)
    if not wanted:
        with refused("data.sequence_length"):
            made()
        return
    rows = made()
    for example in range(rows.rows_per_epoch):
        row = rows.row(example)
        assert row["mask"].any() and row["indices"].tolist() == list(range(length))
        assert not row["mask"][row["segments"] == 0].any(), "padding is not counted"
        assert (row["segments"] == 0).tolist() == (row["tokens"] == 0).tolist()
        for segment in range(1, row["segments"].max() + 1):
            (place,) = np.nonzero(row["segments"] == segment)
            assert row["positions"][place].tolist() == list(range(len(place)))
            labels = np.where(row["mask"][place] > 0, row["labels"][place], -1)
            tokens = row["tokens"][place].tolist()
            assert found.setdefault(tokens[0], list(zip(tokens, labels.tolist(), strict=True)))
    assert found == wanted
    left_out = rows.dropped + rows.empty
    assert len(documents) == len(wanted) + left_out and len(rows.needed.nonzero()[0]) == len(wanted)


def test_a_row_is_the_same_whoever_asks_and_epochs_have_the_rows_in_another_order():
    rows = DocumentRows(stream_of([[False] * 5 + [True]] * 60), sequence_length=11, seed=3)
    assert rows.rows_per_epoch == 30, "two documents of six tokens take ten of a row"
    whole = batch_rows(rows, 7, 8, range(8))
    for host in range(4):
        part = batch_rows(rows, 7, 8, range(host, 8, 4))
        for name, values in part.items():
            np.testing.assert_array_equal(values, whole[name][host::4])
    firsts = [int(rows.row(example)["tokens"][0]) for example in range(60)]
    assert firsts[:30] != firsts[30:] and sorted(firsts[:30]) == sorted(firsts[30:])
    other = DocumentRows(rows.stream, sequence_length=11, seed=4)
    assert firsts[:30] != [int(other.row(example)["tokens"][0]) for example in range(30)]


def opened(folder: Path, **more: Any) -> Data:
    return open_data(DataConfig(**{"source": "tokens", "path": str(folder), **more}), vocab=None, seed=1)


def texts(data: Data, rows: DocumentRows) -> list[str]:
    """The text of each segment of an epoch."""
    found = []
    for row in map(rows.row, range(rows.rows_per_epoch)):
        for number in range(1, row["segments"].max() + 1):
            found.append(data.decode(row["tokens"][row["segments"] == number]))  # pyright: ignore[reportOptionalCall]
    return found


def test_no_answer_is_apart_from_its_question_and_its_system_message(tmp_path: Path):
    lines = [{"messages": turns("capital of peru? " * n, "lima.", system="be brief.")} for n in (1, 1, 2, 2, 3, 3)]
    data = opened(prepared_chat(tmp_path / "out", lines).path, sequence_length=128)
    assert isinstance(data.train, DocumentRows)
    segments = texts(data, data.train)
    assert len(segments) == 6
    for text in segments:
        assert re.fullmatch(r"system\nbe brief.\nuser\n(capital of peru\? )+\nassistant\nlima.\n?", text), text


def long_chat(tmp_path: Path) -> Path:
    """Conversations whose answer is behind a question that fills many rows, and one that is short."""
    lines = [{"messages": turns("capital of peru is lima, " * 9, "lima.")} for _ in range(3)]
    return prepared_chat(tmp_path / "long", [*lines, {"messages": turns("peru?", "lima.")}]).path


def test_long_conversations_are_left_out_or_truncated_and_counted(tmp_path: Path):
    folder = long_chat(tmp_path)
    dropped, start, end = (
        opened(folder, sequence_length=64, long_conversations=long)
        for long in ("drop", "truncate_start", "truncate_end")
    )
    assert "1 conversation in 1 row (3 conversations longer than a row are left out) to train on" in dropped.description
    assert "4 conversations in 4 rows (3 conversations longer than a row are truncated at the b" in start.description
    assert "1 conversation in 1 row (3 conversations without a counted token are left out)" in end.description
    assert isinstance(start.train, DocumentRows)
    cut = [text for text in texts(start, start.train) if not text.startswith("user")]
    assert len(cut) == 3 and all(text.endswith("is lima, \nassistant\nlima.\n") for text in cut)


def test_data_without_a_row_is_refused(tmp_path: Path):
    folder = prepared_chat(tmp_path / "out", [{"messages": turns("capital of peru is lima, " * 9, "lima.")}]).path
    least = int(np.load(folder / "train-00000.npy").size) - 1
    with refused("data.sequence_length=64", f"at least {least}", "data.long_conversations: truncate_start"):
        opened(folder, sequence_length=64)
    with refused("no conversation", "data.sequence_length=64", "loss counts"):
        opened(folder, sequence_length=64, long_conversations="truncate_end")
    assert opened(folder, sequence_length=least).train.row(0)["mask"].sum() == 6


def test_settings_that_a_folder_has_no_use_for_are_refused(tmp_path: Path):
    text = prepared(tmp_path / "text", ["some text. " * 9] * 3, validation_fraction=0.0, tokenizer=TOKENIZER).path
    (tmp_path / "other").mkdir()
    np.save(tmp_path / "file.npy", np.arange(99, dtype=np.uint16))
    for folder, more, parts in (
        (long_chat(tmp_path), {"packed": False}, ("data.packed: false", "/long has", "expected true")),
        (
            text,
            {"packed": False, "validation_path": str(long_chat(tmp_path / "other"))},
            ("data.packed: false", "validation"),
        ),
        (text, {"long_conversations": "truncate_end"}, ("data.long_conversations", "no conversations", "drop")),
        (tmp_path / "file.npy", {"long_conversations": "truncate_end"}, ("data.path has no conversations",)),
        (prepared_pairs(tmp_path / "pairs").path, {"long_conversations": "truncate_end"}, ("answers", "expected drop")),
    ):
        with refused(*parts):
            opened(folder, sequence_length=64, **more)


def test_a_checkpoint_whose_conversations_were_cut_is_not_continued(tmp_path: Path):
    data = opened(prepared_chat(tmp_path / "out", conversations()).path, sequence_length=128)
    again = data.continued(data.facts, 20)
    assert (again.train.row(3)["tokens"] == data.train.row(3)["tokens"]).all()
    with refused("cut the conversations", "run.init_from"):
        data.continued(data.facts | {"shuffle": 2}, 20)


def test_validation_conversations_are_whole_also_beside_validation_text(tmp_path: Path):
    chat = prepared_chat(tmp_path / "chat", conversations(), validation_fraction=0.3)
    text = prepared(tmp_path / "text", [f"{n} and more. " * 9 for n in range(9)], tokenizer=TOKENIZER)
    alone = opened(chat.path, sequence_length=128)
    assert (
        isinstance(alone.validation, DocumentRows)
        and alone.validation.description + " for validation" in alone.description
    )
    mixed = opened(chat.path, path=None, sources={str(chat.path): 1.0, str(text.path): 3.0}, sequence_length=128)
    assert mixed.validation is not None and text.validation is not None and chat.validation is not None
    whole = {one["tokens"].tobytes() for one in map(alone.validation.row, range(alone.validation.rows_per_epoch))}
    seen = [mixed.validation.row(example) for example in range(3 * len(whole))]
    assert whole <= {row["tokens"].tobytes() for row in seen}
    assert any(row["mask"].mean() > 0.9 for row in seen), "rows of text"
    assert len(mixed.validation.stream) == len(text.validation) + len(chat.validation)


def test_validation_conversations_that_are_all_longer_than_a_row_are_reported(tmp_path: Path):
    def for_validation(question: str) -> bool:
        return is_validation("".join(f"<|im_start|>{role}\n{said}<|im_end|>\n" for role, said in
                                (("user", question), ("assistant", "lima."))).encode(), 0.5)  # fmt: skip

    long = [question for n in range(20) if for_validation(question := f"{n}" + " peru" * 20)]
    short = [question for n in range(20) if not for_validation(question := f"{n} peru")]
    lines = [{"messages": turns(question, "lima.")} for question in long + short]
    folder = prepared_chat(tmp_path / "out", lines, validation_fraction=0.5)
    assert folder.validation is not None and len(folder.validation.starts) == len(long)
    data = opened(folder.path, sequence_length=64)
    assert (
        data.validation is None
        and "nothing for validation (data.sequence_length=64 is shorter than" in data.description
    )
    assert opened(folder.path, sequence_length=64, long_conversations="truncate_start").validation is not None
    with refused("data.sequence_length=64", "the validation data"):
        opened(folder.path, sequence_length=64, validation_path=str(long_only(tmp_path)))


def long_only(tmp_path: Path) -> Path:
    return prepared_chat(tmp_path / "long", [{"messages": turns("peru" * 20, "lima.")}]).path

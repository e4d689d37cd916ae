"""Masked rows: which tokens are drawn, what becomes of them, and that an example decides both."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxpar.config import Config, LossConfig, RunConfig
from jaxpar.config.schema import DataConfig
from jaxpar.data import open_data
from jaxpar.data.masked import MaskedRows, masked_data
from jaxpar.data.opened import Data
from jaxpar.data.packing import PackedRows
from jaxpar.data.prepare import mark_spans, prepare
from jaxpar.data.tokens.span_file import read_spans, span_file
from jaxpar.data.tokens.token_folder import open_token_folder
from tests.data.chat_files import prepared_chat
from tests.data.folders import options, quiet, texts, write_tokenizer
from tests.goldens.chat.generate import conversations
from tests.sentences import refused

MASK = 63


SYNTHETIC = DataConfig(source="synthetic", sequence_length=512, batch_size=4)


def masked(data: DataConfig = SYNTHETIC, seed: int = 2, vocab: int | None = 64, **more: Any) -> Data:
    """Masked rows of the source's."""
    loss = LossConfig(**{"name": "masked", "rate": 0.3, "mask_token": MASK, **more})
    return masked_data(Config(loss=loss, data=data, run=RunConfig(seed=seed)), open_data(data, vocab=vocab, seed=1))


def rows(data: Data, count: int = 40) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Rows before and after, side by side."""
    assert isinstance(data.train, MaskedRows)
    both = [(data.train.plain.row(example), data.train.row(example)) for example in range(count)]
    stacked = [{name: np.stack([row[name] for row in side]) for name in side[0]} for side in zip(*both, strict=True)]
    return stacked[0], stacked[1]


def test_a_share_of_the_tokens_is_drawn_of_which_four_fifths_are_hidden():
    before, after = rows(masked(unmasked=(5, 6)))
    tokens, drawn = before["tokens"], after["mask"] > 0
    assert (after["labels"] == tokens).all() and (after["tokens"][~drawn] == tokens[~drawn]).all()
    never = np.isin(tokens, (5, 6, MASK))
    assert never.any() and not drawn[never].any()
    count = drawn.sum()
    assert count == pytest.approx(0.3 * (~never).sum(), rel=0.03)
    shown = after["tokens"][drawn]
    hidden, same = shown == MASK, shown == tokens[drawn]
    assert hidden.sum() == pytest.approx((0.8 + 0.1 / 64) * count, rel=0.03)
    assert same.sum() == pytest.approx((0.1 + 0.1 / 64) * count, rel=0.1)
    others = shown[~hidden & ~same]
    assert len(others) == pytest.approx(0.1 * count, rel=0.1) and len(set(others.tolist())) > 55


def test_the_example_and_the_seed_decide_what_is_drawn():
    one, again, other = (masked(seed=seed) for seed in (2, 2, 3))
    for example in (0, 7):
        np.testing.assert_array_equal(one.train.row(example)["mask"], again.train.row(example)["mask"])
        assert (one.train.row(example)["mask"] != other.train.row(example)["mask"]).any()
    assert (one.train.row(0)["mask"] != one.train.row(1)["mask"]).any()
    continued = one.continued(one.facts, 4)
    np.testing.assert_array_equal(continued.train.row(7)["tokens"], one.train.row(7)["tokens"])


def test_padding_ends_of_documents_and_tokens_that_the_loss_leaves_out_are_not_drawn(tmp_path: Path):
    folder = prepared_chat(tmp_path / "chat", conversations()).path
    source = DataConfig(source="tokens", path=str(folder), sequence_length=256)
    data = masked(source, vocab=None, rate=0.9, mask_token=57)
    before, after = rows(data, 4)
    drawn, segments = after["mask"] > 0, before["segments"]
    assert drawn.any() and not drawn[segments == 0].any()
    assert not (before["tokens"][drawn] == data.separator).any()
    continues, counted = segments[:, 1:] == segments[:, :-1], before["mask"][:, :-1] > 0
    assert (continues & ~counted & (segments[:, 1:] > 0)).any(), "the loss leaves tokens out"
    assert not (drawn[:, 1:] & continues & ~counted).any()
    firsts = ~continues & (segments[:, 1:] > 0)
    assert not (drawn[:, 1:] & firsts & (before["mask"][:, 1:] == 0)).any()
    with refused("loss.mask_token: 61", "less than the vocabulary (61)"):
        masked(source, vocab=None, mask_token=61)
    for token in (61, -1):
        with refused(f"loss.unmasked: {token}", "from 0 to 60"):
            masked(source, vocab=None, mask_token=57, unmasked=(3, token))


def marked_folder(tmp_path: Path) -> tuple[Path, list[dict[str, Any]]]:
    """A folder of text by bytes, and the lines of its spans: every third word, and the first letter of every third."""
    lines = []
    for text in texts(120):
        words = list(re.finditer(r"\S+", text))
        nouns = [[*word.span(), "noun"] for word in words[::3]]
        verbs = [[word.start(), word.start() + 1, "verb"] for word in words[1::3]]
        lines.append({"text": text, "spans": nouns + verbs})
    return prepared(tmp_path, lines, validation_fraction=0.2), lines


def prepared(tmp_path: Path, lines: list[dict[str, Any]], **more: Any) -> Path:
    """A folder of the texts of lines, by bytes."""
    source = tmp_path / "text.jsonl"
    source.write_text("".join(json.dumps({"text": one["text"]}) + "\n" for one in lines))
    tokenizer = write_tokenizer(tmp_path / "bytes" / "tokenizer.json")
    prepare(options(tmp_path / "out", source, tokenizer=tokenizer, **more), quiet())
    return tmp_path / "out"


def write_spans(tmp_path: Path, lines: list[dict[str, Any]]) -> Path:
    file = tmp_path / "spans.jsonl"
    file.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    return file


def test_spans_are_those_of_the_lines_and_are_drawn_whole_at_the_rate_of_their_kind(tmp_path: Path):
    folder, lines = marked_folder(tmp_path)
    mark_spans(write_spans(tmp_path, lines), folder, quiet())
    source = DataConfig(source="tokens", path=str(folder), sequence_length=128)
    data = masked(source, vocab=None, rate=0.1, mask_token=250, spans={"noun": 0.6})
    train, codec = data.train, open_token_folder(folder, key="data.path").codec
    assert isinstance(train, MaskedRows) and isinstance(train.plain, PackedRows) and data.validation is not None
    stream, spans = train.stream, read_spans(span_file(folder, "train"), open_token_folder(folder, key="").identity)
    words = [codec.decode(stream.tokens[first:stop]) for first, stop in zip(spans.first, spans.stop, strict=True)]
    in_train = [one for one in lines if any(len(one["text"]) + 1 == length for length in stream.lengths)]
    known = {one["text"][begin:end] for one in in_train for begin, end, _ in one["spans"]}
    assert set(words) <= known and {spans.names[kind] for kind in spans.kind} == {"noun", "verb"}
    whole, single = [], []
    for example in range(200):
        row, places = train.row(example), train.plain.places(example)
        span = spans.span_indices(places)
        noun = (span >= 0) & (spans.kind[span] == spans.names.index("noun"))
        for one in set(span[noun].tolist()):
            mask = row["mask"][span == one]
            assert len(set(mask.tolist())) == 1, "a span is drawn whole"
            whole.append(mask[0])
        single += row["mask"][~noun & (row["tokens"] != data.separator)].tolist()
    assert np.mean(whole) == pytest.approx(0.6, abs=0.04) and np.mean(single) == pytest.approx(0.1, abs=0.01)


def test_lines_of_spans_that_do_not_fit_are_refused(tmp_path: Path):
    folder, lines = marked_folder(tmp_path)
    source = DataConfig(source="tokens", path=str(folder), sequence_length=64)
    with refused("spans-train.bin", "does not exist", "--spans FILE"):
        masked(source, vocab=None, mask_token=250, spans={"noun": 0.6})
    for line, parts in (
        ({"text": "zz", "spans": []}, (":2:", "no document", "has this text")),
        ({"text": lines[1]["text"], "spans": [[3, 3, "a"]]}, (":2:", "[3, 3]", "begin < end")),
        ({"text": lines[1]["text"], "spans": [[0, 3, "a"], [1, 2, "b"]]}, (":2:", "do not overlap")),
        ({"text": lines[1]["text"]}, (":2:", "`spans`, a list of [begin, end, kind]")),
        ({"text": lines[1]["text"], "spans": [[0, float("inf"), "a"]]}, (":2:", "[begin, end, kind]")),
    ):
        with refused("spans.jsonl", *parts):
            mark_spans(write_spans(tmp_path, [lines[0], line]), folder, quiet())
    assert not span_file(folder, "train").exists(), "nothing is written where a line does not fit"
    with refused("--spans", "none.jsonl", "cannot be read (No such file"):
        mark_spans(tmp_path / "none.jsonl", folder, quiet())
    file = write_spans(tmp_path, lines[:1])
    file.write_bytes(file.read_bytes() + b'{"text": "\xff"}\n')
    with refused("spans.jsonl:2:", "in UTF-8"):
        mark_spans(file, folder, quiet())
    mark_spans(write_spans(tmp_path, lines), folder, quiet())
    with refused("loss.spans", "'nuon' is not a kind", "noun"):
        masked(source, vocab=None, mask_token=250, spans={"nuon": 0.6})
    file = folder / "spans-train.bin"
    file.write_bytes(file.read_bytes()[:-40] + bytes(40))
    with refused("spans-train.bin", "is damaged", "--spans makes it again"):
        masked(source, vocab=None, mask_token=250, spans={"noun": 0.6})


def test_a_text_of_spans_may_have_line_separators_of_unicode(tmp_path: Path):
    lines = [{"text": text, "spans": [[2, 7, "noun"]]} for text in ("a\u2028b\u2029c\x85d", "efghijkl")]
    folder = prepared(tmp_path, lines, validation_fraction=0.0)
    mark_spans(write_spans(tmp_path, lines), folder, quiet())
    opened = open_token_folder(folder, key="")
    spans = read_spans(span_file(folder, "train"), opened.identity)
    texts_of = [opened.codec.decode(opened.train.tokens[first:stop]) for first, stop in zip(*spans[:2], strict=True)]
    assert sorted(texts_of) == sorted(line["text"][2:7] for line in lines)

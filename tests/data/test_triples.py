"""Relations between spans: those of the lines, in the rows that have both spans, and a sentence for each mistake."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from jaxpar.config.mappings.contrastive import ContrastiveConfig
from jaxpar.config.schema import DataConfig
from jaxpar.data.masked import MaskedRows
from jaxpar.data.packing import PackedRows
from jaxpar.data.prepare import mark_triples
from jaxpar.data.tokens.token_folder import open_token_folder
from jaxpar.data.tokens.triple_file import Triples, read_triples, triple_file
from tests.data.chat_files import prepared_chat
from tests.data.folders import quiet, texts
from tests.data.test_masked import masked, prepared
from tests.goldens.chat.generate import conversations
from tests.sentences import refused

TERM = ContrastiveConfig(weight=1.0, hop_decay=0.5, relations={"far": 3.0, "none": 0.0}, most=8)

MASKED = {"name": "masked", "mask_token": 5}


def lines_of(count: int = 60) -> list[dict[str, Any]]:
    """Triples of each text: from its number to words behind it, one more than a row may have room for."""
    lines = []
    for text in texts(count):
        end = text.index(":")
        spans = [[end + 2 + 4 * one, end + 4 + 4 * one] for one in range(3)]
        names = ("near", "far", "none")
        triples = [[[0, end], names[one], span, one + 1] for one, span in enumerate(spans) if span[1] <= len(text)]
        lines.append({"text": text, "triples": triples})
    return lines


def written(folder: Path, lines: list[dict[str, Any]]) -> Path:
    (file := folder / "triples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_rows_have_the_triples_whose_spans_they_have_with_weights_by_relation_and_hop(tmp_path: Path):
    folder, lines = prepared(tmp_path, lines_of(), validation_fraction=0.2), lines_of()
    mark_triples(written(tmp_path, lines), folder, quiet())
    source = DataConfig(source="tokens", path=str(folder), sequence_length=100)
    data = masked(source, vocab=None, mask_token=250, contrastive=TERM)
    decode = open_token_folder(folder, key="").codec.decode
    by_head: dict[str, set[tuple[str, str]]] = {}
    for line in lines:
        text = line["text"]
        tails = {(text[slice(*tail)], relation) for _, relation, tail, _ in line["triples"]}
        by_head[text[: text.index(":")]] = tails
    weights = {"near": 1.0, "far": 1.5}
    seen = 0
    for rows in (data.train, data.validation):
        assert isinstance(rows, MaskedRows) and isinstance(rows.plain, PackedRows)
        for example in range(rows.rows_per_epoch):
            row = rows.row(example)
            tokens = row["labels"]
            assert row["triples"].shape == (8, 4) and row["triple_weights"].dtype == np.float32
            for (head, head_stop, tail, tail_stop), weight in zip(row["triples"], row["triple_weights"], strict=True):
                if not weight:
                    continue
                assert len(set(row["segments"][[head, head_stop - 1, tail, tail_stop - 1]].tolist())) == 1
                related = {(text, weights.get(name)) for text, name in by_head[decode(tokens[head:head_stop])]}
                assert (decode(tokens[tail:tail_stop]), weight) in related
                seen += 1
    assert seen > 60


def test_a_row_takes_the_first_triples_within_its_parts():
    heads = np.array([2, 2, 10, 11, 30])
    tails = np.array([5, 12, 12, 2, 33])
    triples = Triples(heads, heads + 1, np.zeros(5, int), tails, tails + 2, np.ones(5, int), ("r",))
    weights = np.array([1, 1, 0.5, 1, 0.25], np.float32)
    # The row has the tokens 30 to 34, and then 2 to 13.
    tokens = np.array([*range(30, 35), *range(2, 14)])
    spans, of_row = triples.row_triples(tokens, weights, 6)
    inside = [[0, 1, 3, 5], [5, 6, 8, 10], [5, 6, 15, 17], [13, 14, 15, 17], [14, 15, 5, 7]]
    assert spans[:5].tolist() == inside and of_row.tolist() == [0.25, 1, 1, 0.5, 1, 0]
    assert triples.row_triples(tokens, weights, 2)[0].tolist() == inside[:2]
    assert triples.row_triples(tokens[:-1], weights, 6)[0][:3].tolist() == [inside[0], inside[1], inside[4]]
    assert triples.row_triples(tokens, weights * (np.arange(5) != 4), 6)[0][0].tolist() == inside[1]


def test_lines_that_do_not_fit_are_refused(tmp_path: Path):
    lines = lines_of(20)
    folder = prepared(tmp_path, lines, validation_fraction=0.2)
    source = DataConfig(source="tokens", path=str(folder), sequence_length=64)
    text, one = lines[1]["text"], [[0, 3], "r", [4, 6], 1]
    with refused("triples-train.bin", "does not exist", "--triples FILE"):
        masked(source, vocab=None, mask_token=250, contrastive=TERM)
    for line, parts in (
        ({"text": "zz", "triples": []}, (":2:", "no document", "has this text")),
        ({"text": text, "triples": [[[0, 3], "r", [900, 950], 1]]}, (":2:", "[900, 950]", "no character of the text")),
        ({"text": text, "triples": [[[3, 3], "r", [4, 6], 1]]}, (":2:", "[3, 3]", "begin < end")),
        ({"text": text, "triples": [[*one[:3], 0]]}, (":2:", "hop 0", "expected 1")),
        ({"text": text, "triples": [one[:3]]}, (":2:", "`triples`, a list of [[begin, end], relation")),
        ({"text": text, "triples": [[*one[:3], 1.5]]}, (":2:", "hop]")),
        ({"text": text}, (":2:", "`triples`")),
    ):
        with refused("triples.jsonl", *parts):
            mark_triples(written(tmp_path, [lines[0], line]), folder, quiet())
    assert not triple_file(folder, "train").exists(), "nothing is written where a line does not fit"
    mark_triples(written(tmp_path, lines), folder, quiet())
    with refused("loss.contrastive.relations", "'fra' is not a relation", "far"):
        masked(source, vocab=None, mask_token=250, contrastive=ContrastiveConfig(1.0, relations={"fra": 2.0}))
    (file := triple_file(folder, "train")).write_bytes(file.read_bytes()[:-40] + bytes(40))
    with refused("triples-train.bin", "is damaged", "--triples makes it again"):
        read_triples(file, "")
    with refused("loss.contrastive", "synthetic", "prepare --triples"):
        masked(mask_token=63, contrastive=TERM)
    with refused("--triples are of text", "conversations"):
        mark_triples(written(tmp_path, lines), prepared_chat(tmp_path / "chat", conversations()).path, quiet())

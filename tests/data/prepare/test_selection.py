"""Documents that a preparation leaves out are those of its options, the same for any number of processes."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from jaxpar.data.prepare import prepare
from jaxpar.data.prepare.choice import Choice
from jaxpar.data.prepare.job import WORK
from jaxpar.data.prepare.selection.duplicates import _WORD, duplicates, signature
from jaxpar.data.prepare.selection.screening import screen_maker
from jaxpar.evaluation.contamination import shared_ngrams
from jaxpar.evaluation.task import Document, Perplexity, Task
from tests.data.chat_files import prepared_chat, spelled, turns
from tests.data.folders import contents, decoded, options, prepared, quiet, texts, write_jsonl
from tests.sentences import refused


def chosen(out: Path, documents: list[str], **choice) -> tuple[list[str], dict[str, int]]:
    """The documents that are prepared, and how many are not, by reason."""
    folder = prepared(out, documents, validation_fraction=0.0, choice=Choice(**choice))
    return decoded(folder)[0], folder.index.skipped


def test_patterns_and_a_function_leave_documents_out(tmp_path: Path):
    (tmp_path / "quality.py").write_text("import numpy\ndef good(text):\n    return numpy.int64(len(text)) > 3\n")
    documents = ["one: 1", "two: 2", "one: draft", "one", "", "one: 3"]
    kept, skipped = chosen(
        tmp_path / "out", documents, keep=("^one", "e"), drop=("draft",), filter=f"{tmp_path}/quality.py:good"
    )
    assert kept == ["one: 1", "one: 3"]
    assert skipped == {"empty": 1, "broken": 0, "keep": 1, "drop": 1, "filter": 1}


def test_the_first_of_equal_documents_stays(tmp_path: Path):
    documents = texts(30)
    kept, skipped = chosen(tmp_path / "out", [*documents, *documents[3:9], "", ""], dedup="exact")
    assert kept == documents and skipped == {"empty": 2, "broken": 0, "duplicate": 6}


def test_the_first_of_similar_documents_stays(tmp_path: Path):
    """With two other words of 400, 95% of the sets of five are common; with the last 150 reversed, 45% are."""
    draw = np.random.default_rng(0)
    words = [f"w{number}" for number in draw.integers(0, 10**6, 400)]
    near, half = [*words[:100], "x", *words[101:300], "y", *words[301:]], [*words[:250], *reversed(words[250:])]
    kept, _ = chosen(tmp_path / "out", [" ".join(one) for one in (words, near, half)], dedup="minhash")
    assert kept == [" ".join(words), " ".join(half)]


def test_estimates_of_similarity_are_those_of_minhash():
    """A band of eight numbers is equal for the eighth power of the share of common elements, here 0.8."""
    draw, equal = np.random.default_rng(1), 0.0
    for _ in range(40):
        common = [f"c{number}" for number in draw.integers(0, 10**9, 364)]
        one, other = ([*common, *(f"{name}{number}" for number in draw.integers(0, 10**9, 45))] for name in "ab")
        equal += (signature(" ".join(one), "minhash") == signature(" ".join(other), "minhash")).mean() / 40
    assert equal == pytest.approx((360 / 450) ** 8, abs=0.05)


def test_documents_that_others_link_are_duplicates_of_the_first():
    bands = np.array([[1, 9], [2, 8], [3, 8], [3, 7], [4, 7], [5, 6], [4, 5]], np.uint64)
    for parts in ([bands], [bands[:3], bands[3:]]):
        assert duplicates(parts).tolist() == [False, False, True, True, True, False, True]
    linked = np.stack([np.arange(64) // 2, (np.arange(64) + 1) // 2 + 100], 1)[np.random.default_rng(0).permutation(64)]
    assert duplicates([linked]).tolist() == [False] + [True] * 63


def test_a_long_chain_of_links_takes_no_square_of_its_length():
    chain = np.stack([np.arange(100_000) // 2, (np.arange(100_000) + 1) // 2 + 100_000], 1)
    begun = time.process_time()
    assert duplicates([chain]).sum() == 99_999
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    ("one", "other"),
    [("कि", "का"), ("का", "के"), ("if a < b", "if a > b"), ("a-1", "a+1"), ("שָלוֹם", "שִלוֹם"), ("f(a)", "f[a]")],
)
def test_marks_of_letters_and_signs_tell_texts_apart(one: str, other: str):
    assert (signature(one, "minhash") != signature(other, "minhash")).all()


def test_a_word_has_its_combining_marks_and_a_sign_is_one_of_its_own():
    assert _WORD.findall("हिन्दी में a_1+=b2") == ["हिन्दी", "में", "a_1", "+", "=", "b2"]


def test_the_folder_is_the_same_for_any_number_of_processes(tmp_path: Path):
    documents = texts(60)
    source = write_jsonl(tmp_path / "a.jsonl", [*documents, *documents[20:50]])
    made = {}
    for processes in (1, 3):
        asked = options(
            tmp_path / str(processes) / "out", source, processes=processes, train_bpe=300, choice=Choice(dedup="exact")
        )
        made[processes] = contents(prepare(asked, quiet()).path)
    assert made[1] == made[3]
    assert not [name for name in made[1] if WORK in name or name.endswith(".tmp")]
    clean = prepare(options(tmp_path / "out", write_jsonl(tmp_path / "b.jsonl", documents), train_bpe=300), quiet())
    assert (clean.path / "tokenizer.json").read_bytes() == made[1]["tokenizer.json"], "duplicates do not train it"


def test_texts_of_an_evaluation_are_not_trained_on(tmp_path: Path):
    documents = texts(40)
    texts_of_task = (documents[7][10:50], documents[30])
    folder = prepared(tmp_path / "out", documents, choice=Choice(decontaminate=texts_of_task, ngram=20))
    assert folder.index.skipped["contaminated"] >= 2
    task = Task("t", Perplexity("x"), tuple(map(Document, texts_of_task)))
    assert not any(overlap.matched for overlap in shared_ngrams(folder.path, [task], 20)[0])
    whole = prepared(tmp_path / "all", documents, validation_fraction=0.0)
    assert all(overlap.matched for overlap in shared_ngrams(whole.path, [task], 20)[0])


def test_conversations_are_chosen_by_what_their_messages_say(tmp_path: Path):
    lines = [{"messages": turns("a", "b")}, {"id": 2, "messages": turns("a", "b")}, {"messages": turns("a", "c")}]
    folder = prepared_chat(tmp_path / "out", lines, choice=Choice(drop=("^a\nc$",), dedup="exact"))
    assert len(spelled(folder)) == 1
    assert folder.index.skipped == {"empty": 0, "broken": 0, "drop": 1, "duplicate": 1}


@pytest.mark.parametrize(
    ("choice", "parts"),
    [
        ({"drop": ("(",)}, ("--drop '('", "regular expression")),
        ({"filter": "f.txt"}, ("--filter 'f.txt'", "FILE.py:NAME")),
        ({"filter": "{}/f.py:better"}, ("no function 'better'", "good")),
        ({"filter": "{}/f.py:fails"}, ("out-input.jsonl:1", "ZeroDivisionError")),
        ({"filter": "{}/f.py:good"}, ("out-input.jsonl:1", "True or False", "3")),
        ({"keep": ("never",)}, ("no document to train on", "2 without --keep")),
    ],
)
def test_a_choice_that_cannot_be_made_is_one_sentence(tmp_path: Path, choice, parts):
    (tmp_path / "f.py").write_text("def good(text):\n    return 3\n\ndef fails(text):\n    return 1 / 0\n")
    if "filter" in choice:
        choice = {"filter": choice["filter"].format(tmp_path)}
    with refused(*parts):
        chosen(tmp_path / "out", ["a", "b"], **choice)


def test_another_choice_needs_another_folder_and_a_damaged_unit_is_made_again(tmp_path, monkeypatch):
    source = write_jsonl(tmp_path / "a.jsonl", [*texts(30), *texts(30)])
    asked = options(tmp_path / "out", source, choice=Choice(dedup="exact"))
    with monkeypatch.context() as patch:
        patch.setattr("jaxpar.data.prepare.selection.screening.duplicates", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare(asked, quiet())
    with refused("--dedup is", "exact"):
        prepare(options(tmp_path / "out", source, choice=Choice(dedup="minhash")), quiet())
    units = sorted((tmp_path / "out" / ".prepare" / "screened").glob("*.npz"))
    units[1].write_bytes(units[1].read_bytes()[:-30])
    made = []
    with monkeypatch.context() as patch:
        patch.setattr("jaxpar.data.prepare.selection.screening.screen_maker", recording(made))
        folder = prepare(asked, quiet())
    assert made == [1] and sorted([*decoded(folder)[0], *decoded(folder)[1]]) == sorted(texts(30))
    assert folder.index.skipped["duplicate"] == 30
    assert json.loads((folder.path / "prepare.json").read_text())["options"]["dedup"] == "exact"


def interrupt(*_):
    raise KeyboardInterrupt


def recording(made: list[int]):
    """`screen_maker`, with the units that it is asked for."""

    def maker(job, report):
        make = screen_maker(job, report)
        return lambda unit: made.append(unit) or make(unit)

    return maker

"""Texts of a task that are in training data are found, and its numbers are also those without them."""

from pathlib import Path

import numpy as np
import pytest

from jaxpar.data.tokens import text_codec
from jaxpar.data.tokens.ngrams import Overlap
from jaxpar.evaluation.contamination import Contamination, min_k, shared_ngrams, with_contamination
from jaxpar.evaluation.outcome import Outcome, mean
from jaxpar.evaluation.task import Choice, Document, MultipleChoice, Perplexity, Task
from tests.data.folders import decoded, prepared
from tests.sentences import refused


def test_planted_texts_are_found_in_the_training_documents_alone(tmp_path: Path):
    draw = np.random.default_rng(0)
    folder = prepared(tmp_path / "tokens", ["".join(draw.choice(list("abcdefgh"), 90)) for _ in range(60)])
    trained, validation = decoded(folder)
    seen, planted = trained[5], f"~~~~~{trained[2][10:50]}~~~~~"
    across = trained[0][-15:] + trained[1][:15]  # the end of one document and the beginning of the next
    choice = Choice(seen[:20], (seen[20:40], "something else"), 0)
    tasks = [
        Task("documents", Perplexity("x"), (Document(planted), Document("zyx " * 10), Document(across), Document("w"))),
        Task("choices", MultipleChoice("x", delimiter=""), (choice,)),
        Task("validation", Perplexity("x"), (Document(validation[0]),)),
    ]
    found = shared_ngrams(folder.path, tasks, 20)
    planted_overlap, other, joined, short = found[0]
    assert planted_overlap == Overlap(len(planted), len(planted) - 19, 21, 40), "40 bytes, 21 places of 20 bytes"
    assert other.matched == joined.matched == short.matched == short.ngrams == 0
    assert found[1] == [Overlap(40, 21, 21, 40)] and found[2] == [Overlap(90, 71, 0, 0)]


def test_the_tokenizer_of_the_folder_is_loaded_once_for_all_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder, loaded, load = prepared(tmp_path / "tokens", ["abc " * 40] * 9), [], text_codec.load_tokenizer
    monkeypatch.setattr(text_codec, "load_tokenizer", lambda *given: loaded.append(given) or load(*given))
    texts = tuple(Document(f"text {number}") for number in range(5))
    shared_ngrams(folder.path, [Task("a", Perplexity("x"), texts), Task("b", Perplexity("x"), texts)], 5)
    assert len(loaded) == 1


def test_what_is_no_token_folder_is_refused(tmp_path: Path):
    with refused("--contamination", "index.json"):
        shared_ngrams(tmp_path, [], 13)


def test_results_come_also_without_the_texts_that_were_found():
    examples = tuple(Document("text") for _ in range(4))
    task, hits = Task("t", Perplexity("x"), examples), [1.0, 0.0, 1.0, 1.0]
    outcome = Outcome("multiple_choice", 4, {"acc": mean(hits)}, [{"acc": hit} for hit in hits])
    overlaps = [Overlap(10, 4, 4, 10), Overlap(10, 4, 0, 0), Overlap(20, 14, 0, 0), Overlap(10, 4, 0, 0)]
    found = with_contamination(outcome, task, Contamination(overlaps, [-1.0, -2.0, -3.0, -6.0]))
    assert found.metrics["acc"].value == 0.75 and found.metrics["acc_clean"] == mean(hits[1:])
    assert found.metrics["contaminated"] == mean([1.0, 0.0, 0.0, 0.0])
    assert found.metrics["covered"].value == pytest.approx(10 / 50) and found.metrics["min_k"].value == -3.0
    assert found.details[0] == {"acc": 1.0, "ngrams": 4, "ngrams_found": 4, "covered": 1.0, "min_k": -1.0}
    alone = with_contamination(None, task, Contamination(overlaps, None))
    assert set(alone.metrics) == {"contaminated", "covered"}


def test_min_k_is_the_mean_of_the_least_likely_tokens():
    values = np.array([-1.0, -9.0, -2.0, -5.0, -3.0, -4.0, -1.0, -1.0, -1.0, -1.0, -1.0], np.float32)
    assert min_k(values, 0.2) == pytest.approx(-7.0)
    assert min_k(values[:3], 0.2) == -9.0, "one token at least"

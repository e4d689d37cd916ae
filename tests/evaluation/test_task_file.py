"""Files of tasks are read whole or refused in one sentence that names the file, the line and the field."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxpar.evaluation.task import Choice, Document, Generation, MultipleChoice, Perplexity, Question
from jaxpar.evaluation.task_file import is_task_file, read_task, read_tasks
from tests.sentences import refused

ROWS: dict[str, list[dict[str, Any]]] = {
    "choice": [
        {"context": "a", "choices": ["b", "c"], "answer": 1, "id": 7},
        {"context": "", "choices": ["b", "c"], "answer": 0},
    ],
    "question": [{"prompt": "a", "answer": ["b", "c"]}, {"prompt": "d", "answer": "e"}],
    "text": [{"text": "a"}, {"text": "b"}],
}  # fmt: skip


def write(folder: Path, name: str, content: str) -> Path:
    path = folder / name
    path.write_text(content)
    return path


def lines(folder: Path, name: str, rows: list[Any]) -> Path:
    return write(folder, f"{name}.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n")


def test_lines_are_of_the_kind_that_their_fields_state(tmp_path: Path):
    found = {name: read_task(lines(tmp_path, name, rows)) for name, rows in ROWS.items()}
    assert [type(task.settings) for task in found.values()] == [MultipleChoice, Generation, Perplexity]
    assert found["choice"].examples == (Choice("a", ("b", "c"), 1, 7), Choice("", ("b", "c"), 0))
    assert found["choice"].texts == ["a c", " b"]
    assert [one.answers for one in found["question"].examples if isinstance(one, Question)] == [("b", "c"), ("e",)]
    assert found["text"].name == "text" and found["text"].texts == ["a", "b"]


def test_settings_apply_to_the_lines_beside_them(tmp_path: Path):
    lines(tmp_path, "question", ROWS["question"])
    text = "kind: generation\ndata: question.jsonl\nname: q\ntokens: 3\nstop: [x, 'y z']\npattern: '(a)'\n"
    task = read_task(write(tmp_path, "own.yaml", text))
    assert isinstance(task.settings, Generation) and task.name == "q"
    assert (task.settings.tokens, task.settings.stop, task.settings.pattern) == (3, ("x", "y z"), "(a)")
    write(tmp_path, "plain.txt", "two\nlines\n")
    task = read_task(write(tmp_path, "own.yaml", "kind: perplexity\ndata: plain.txt\nstride: 4\n"))
    assert task.examples == (Document("two\nlines\n"),) == read_task(tmp_path / "plain.txt").examples


def test_names_of_tasks_are_reported_from_files():
    assert [is_task_file(word) for word in ("a.yaml", "x/b", "c.TXT", "arc_easy")] == [True, True, True, False]


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("a.yaml", "kind: multiple_choise\ndata: x.jsonl", ("a.yaml", "multiple_choise", "mean multiple_choice")),
        ("a.yaml", "data: x.jsonl", ("a.yaml", "kind", "missing", "perplexity")),
        ("a.yaml", "kind: generation\ndata: x.jsonl\ntoken: 4", ("a.yaml", "token", "did you mean tokens")),
        ("a.yaml", "kind: generation\ndata: x.jsonl\ntokens: 0", ("a.yaml", "tokens", "from 1", "got 0")),
        ("a.yaml", "kind: generation\ndata: x.jsonl\ntokens: many", ("tokens", "a whole number", "many")),
        ("a.yaml", "kind: generation\ndata: x.jsonl\npattern: '('", ("a.yaml", "pattern", "'('")),
        ("a.yaml", "kind: generation\ndata: x.jsonl\npattern: 'a{9999999999}'", ("a.yaml", "pattern", "repetition")),
        (
            "a.yaml",
            f"kind: generation\ndata: x.jsonl\npattern: '{'(' * 5000}{')' * 5000}'",
            ("a.yaml", "pattern", "recursion"),
        ),
        ("a.yaml", "kind: perplexity\ndata: x.txt\nstride: 0", ("a.yaml", "stride", "at least 1")),
        ("a.yaml", "kind: perplexity\ndata: x.csv", ("a.yaml", "x.csv", ".jsonl")),
        ("a.yaml", "kind: generation\ndata: x.txt", ("a.yaml", "x.txt", ".jsonl")),
        ("a.yaml", "kind: generation\ndata: q.jsonl", ("q.jsonl", "does not exist")),
        ("a.yaml", "kind: generation", ("a.yaml", "data", "missing")),
        ("a.jsonl", '{"prompt": "a", "answer": "b"}\n{"prompt": "a"}', ("a.jsonl:2", "answer", "missing")),
        ("a.jsonl", '{"prompt": "a", "answer": "b"}\n{oops}', ("a.jsonl:2", "JSON")),
        ("a.jsonl", '{"prompt": "a", "answer": []}', ("a.jsonl:1", "answer", "not empty")),
        ("a.jsonl", '{"context": "a", "choices": ["b", "c"], "answer": 2}', ("a.jsonl:1", "answer", "0 to 1", "got 2")),
        ("a.jsonl", '{"context": "a", "choices": ["b"], "answer": 0}', ("a.jsonl:1", "choices", "at least two")),
        ("a.jsonl", '{"context": "a", "choices": ["b", ""], "answer": 0}', ("a.jsonl:1", "choices", "not empty")),
        ("a.jsonl", '{"context": 1, "choices": ["b", "c"], "answer": 0}', ("a.jsonl:1", "context", "text", "1")),
        ("a.jsonl", '{"text": "a\\u0000"}', ("a.jsonl:1", "text", "NUL")),
        ("a.jsonl", '{"txt": "a"}', ("a.jsonl:1", "choices", "prompt", "text")),
        ("a.jsonl", "\n\n", ("a.jsonl", "no example")),
        ("a.txt", "", ("a.txt", "not empty")),
        ("a.csv", "x", ("a.csv", ".yaml", ".txt")),
    ],
)  # fmt: skip
def test_mistakes_are_one_sentence(name: str, content: str, parts: tuple[str, ...], tmp_path: Path):
    path = write(tmp_path, name, content)
    with refused(*parts):
        read_task(path)


def test_two_tasks_of_one_name_are_refused(tmp_path: Path):
    first = lines(tmp_path, "text", ROWS["text"])
    with refused("text.txt", "second task", "name"):
        read_tasks([str(first), str(write(tmp_path, "text.txt", "a"))])

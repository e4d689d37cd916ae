"""Text, conversations and exams, made from the sources, docstrings and manual of Python's standard library."""

from __future__ import annotations

import ast
import hashlib
import json
import random
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import NamedTuple

from jaxpar.data.stdlib import paths

VALIDATION_ONE_IN = 16
"""One source file in so many, and one sum in so many, is in exams and validation alone."""
LARGEST = 30
"""The largest number that is added."""
IN_CONVERSATIONS = 4
"""One training sum in so many is in a conversation; rewards teach the others."""
MOST = 200
"""Questions of an exam."""
CHARACTERS = 4000
"""Characters of a text of an exam."""
SUM = "What is {} + {}?"
PURPOSE = "What does {} do?"
WHO = ("Who are you?", "What are you?", "What is your name?", "Hello!")
IDENTITY = "I am a small language model. I was trained by jaxpar on Python's standard library."
BEFORE, BEHIND = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
"""The text of ChatML before a question, and between it and its answer."""
EXAMS = ("text", "docs", "sums")
"""Bits a byte of unseen files; choices between descriptions of unseen functions; sums."""
DONE = "done"


class Documented(NamedTuple):
    """A function or class of the library."""

    name: str
    docstring: str

    @property
    def sentence(self) -> str:
        """The first sentence of the docstring."""
        first = " ".join(self.docstring.split("\n\n")[0].split())
        return first.split(". ")[0].rstrip(".") + "."


def write_text(folder: Path, root: Path | None = None) -> None:
    """Write everything that later stages read; the file `DONE`, written last, says that all is there.

    The same Python gives the same files. `root` is a folder of sources in place of the library's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    root = root or Path(sysconfig.get_path("stdlib"))
    names = [path for path in paths(root) if (root / path).stat().st_size]
    sources = {name: (root / name).read_text(errors="replace") for name in names}
    taught = [one for name, text in sources.items() if not _is_validation(name) for one in _documented(name, text)]
    asked = [one for name, text in sources.items() if _is_validation(name) for one in _documented(name, text)]
    sums = [(a, b) for a in range(LARGEST + 1) for b in range(LARGEST + 1)]
    to_learn = [pair for pair in sums if not _is_validation(str(sorted(pair)))]  # 3 + 5 is no other sum than 5 + 3
    to_ask = [pair for pair in sums if _is_validation(str(sorted(pair)))]
    validation = [text for name, text in sources.items() if _is_validation(name)]
    lines: dict[str, Iterable[Mapping[str, object]]] = {
        "code": ({"text": text} for name, text in sources.items() if not _is_validation(name)),
        "code_validation": ({"text": text} for text in validation),
        "docs": ({"text": text} for text in [*topics.values(), *(f"{one.name}\n\n{one.docstring}" for one in taught)]),
        "chats": _conversations(taught, to_learn),
        "prompts": map(_prompt, to_learn),
        "prompts_validation": map(_prompt, to_ask),
        "exam_text": ({"text": text[:CHARACTERS]} for text in validation),
        "exam_docs": _choices(asked),
        "exam_sums": ({"prompt": f"{SUM.format(*pair)}{BEHIND}", "answer": str(sum(pair))} for pair in to_ask),
    }
    for name, records in lines.items():
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    (folder / "text.yaml").write_text("kind: perplexity\ndata: exam_text.jsonl\n")
    (folder / "docs.yaml").write_text("kind: multiple_choice\ndata: exam_docs.jsonl\n")
    (folder / "sums.yaml").write_text(
        f"kind: generation\ndata: exam_sums.jsonl\npreamble: {json.dumps(BEFORE)}\ntokens: 24\n"
    )
    (folder / DONE).touch()


def _is_validation(name: str) -> bool:
    return hashlib.sha256(name.encode()).digest()[0] % VALIDATION_ONE_IN == 0


def _documented(path: str, text: str) -> Iterator[Documented]:
    """The public functions and classes of a module that have a docstring."""
    try:
        module = ast.parse(text)
    except SyntaxError:  # templates of lib2to3 and the like
        return
    prefix = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            docstring = ast.get_docstring(node)
            if docstring and docstring.isascii():
                yield Documented(f"{prefix}.{node.name}", docstring)


def _conversations(taught: Sequence[Documented], sums: Sequence[tuple[int, int]]) -> Iterator[Mapping[str, object]]:
    every = [(PURPOSE.format(one.name), one.sentence) for one in taught]
    every += [(SUM.format(a, b), str(a + b)) for a, b in sums[::IN_CONVERSATIONS]] * 8
    every += [(question, IDENTITY) for question in WHO] * 10
    random.Random(0).shuffle(every)
    for question, answer in every:
        yield {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def _prompt(pair: tuple[int, int]) -> Mapping[str, object]:
    return {"prompt": [{"role": "user", "content": SUM.format(*pair)}], "answer": str(sum(pair)), "source": "sums"}


def _choices(asked: Sequence[Documented]) -> Iterator[Mapping[str, object]]:
    """Questions for the first sentence of a docstring, among those of three others."""
    draw = random.Random(0)
    sentences = sorted({one.sentence for one in asked})
    for one in draw.sample(asked, min(MOST, len(asked))):
        choices = [one.sentence, *draw.sample([other for other in sentences if other != one.sentence], 3)]
        draw.shuffle(choices)
        yield {"context": f"{one.name}\n\n", "choices": choices, "answer": choices.index(one.sentence)}

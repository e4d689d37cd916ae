"""Token folders of pairs of answers, for tests."""

from pathlib import Path
from typing import Any

from jaxpar.data.tokens.token_folder import TokenFolder
from tests.data.chat_files import prepared_chat, turns
from tests.goldens.chat.generate import conversations


def pairs() -> list[dict[str, Any]]:
    """Questions with the right answer, and one that is wrong or longer than it should be."""
    found = []
    questions = [line.get("messages") or turns(line["prompt"], line["completion"]) for line in conversations()]
    for number, messages in enumerate(questions):
        *prompt, right = messages
        other = questions[(number + 5) % len(questions)][-1]["content"]
        wrong = [other, f"{right['content']} or {other}", "no."][number % 3]
        found.append({"prompt": prompt, "chosen": [right], "rejected": [{"role": "assistant", "content": wrong}]})
    return found


def prepared_pairs(out: Path, lines: list[dict[str, Any]] | None = None, **changes: Any) -> TokenFolder:
    """A token folder at `out` with these pairs."""
    return prepared_chat(out, pairs() if lines is None else lines, **{"format": "preference"} | changes)


def marked() -> list[dict[str, Any]]:
    """The answers of `pairs`, each with its mark, the wrong ones first."""
    found = [
        {"prompt": one["prompt"], "completion": one[key], "label": key == "chosen"}
        for key in ("rejected", "chosen")
        for one in pairs()
    ]
    return found[: len(found) * 3 // 4]


def prepared_marked(out: Path, lines: list[dict[str, Any]] | None = None, **changes: Any) -> TokenFolder:
    """A token folder at `out` with these answers."""
    return prepared_chat(out, marked() if lines is None else lines, **{"format": "labelled"} | changes)

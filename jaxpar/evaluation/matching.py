"""Matches of the regular expression of a task, found in a process of their own with a limit of time and memory."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import cut, quoted
from jaxpar.config.strict_json import json_text

PROGRAM = Path(__file__).with_name("first_match.py")
SECONDS = 5.0
"""Processor time for the pattern, and for each text."""


def check_pattern(pattern: str) -> None:
    """Refuse what is no regular expression. Raises `UserError`."""
    first_matches(pattern, ())


def first_matches(pattern: str, texts: Sequence[str]) -> list[str | None]:
    """The first match of the pattern in each text: its first group, or the full match; None without a match.

    Raises:
        UserError: it is no regular expression, or takes longer than `SECONDS` or too much memory for one text.
    """
    request = json_text({"pattern": pattern, "texts": list(texts), "seconds": SECONDS})
    # With -P its folder is not searched for modules: our files have names that others may have.
    ended = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", str(PROGRAM)],
        input=request.encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    lines = ended.stdout.splitlines()
    compiled, *matches = map(json.loads, lines) if lines else ({},)
    if "refused" in compiled:
        raise UserError(f"pattern: {quoted(pattern)} is no regular expression ({cut(compiled['refused'], 200)})")
    if matches and isinstance(matches[-1], dict):
        raise UserError(
            f"pattern: {quoted(pattern)} cannot be used for text {len(matches)} of {len(texts)}, because "
            f"{matches[-1]['refused']}; expected one without a repetition of what is repeated, such as (a+)+"
        )
    if lines and len(matches) == len(texts):
        return matches
    if ended.returncode == -signal.SIGPROF:
        what = f"text {len(matches) + 1} of {len(texts)}" if lines else "reading it"
        raise UserError(
            f"pattern: {quoted(pattern)} takes more than {SECONDS:g} seconds of processor time for {what}; expected "
            "one without a repetition of what is repeated, such as (a+)+"
        )
    raise UserError(f"pattern: {quoted(pattern)} ended the process that matches it (exit code {ended.returncode})")

"""The file of results: `--json` of every benchmark that has one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jaxpar.cli import Parser
from jaxpar.config.strict_json import json_text


def add_json_file(parser: Parser) -> None:
    """`--json FILE`."""
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the results there")


def write_json(file: Path | None, results: Any) -> None:
    """Write the results if `--json` was given."""
    if file is not None:
        file.write_text(json_text(results, indent=1) + "\n")

"""The file of results: `--json` of every benchmark that has one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jaxpar.cli import Parser


def add_json_file(parser: Parser) -> None:
    """`--json FILE`."""
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the results there")


def write_json(file: Path | None, results: Any) -> None:
    """Write the results if `--json` was given."""
    if file is not None:
        file.write_text(json.dumps(results, indent=1) + "\n")

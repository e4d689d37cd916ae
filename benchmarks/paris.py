"""A mixture of models of clusters, one run of as many tokens and FLOPs, and one of a model's share of them, on the
quickstart's text.

`python -m benchmarks.paris` trains them with the quickstart's model; what is in the folder already is not trained
again. All are measured on the same validation documents, of which the router has seen none.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.results import add_json_file, write_json
from benchmarks.study import CONFIG, SETTINGS
from jaxpar import mixture
from jaxpar.cli import Parser, positive
from jaxpar.data.stdlib import paths
from jaxpar.data.tokens.token_folder import open_token_folder
from jaxpar.evaluation.mixture import log_probabilities, table_of, validation_rows
from jaxpar.generation.mixture.source import open_models, read_record
from jaxpar.interop.sources.saved_weights import SavedWeights

BYTES = 257
"""Vocabulary of a BPE without merges, as the quickstart's: the bytes and the end of a document."""
MORE = {"parallel.fsdp": 1, "data.batch_size": 8, "checkpoint.every": 100}


def main() -> int:
    """Train what is missing, and print nats a token."""
    parser = Parser("benchmarks.paris", "A mixture of models of clusters against one dense run.")
    parser.add_argument("--folder", type=Path, default=Path("paris"), help="where the text and the runs are")
    parser.add_argument("--clusters", type=positive, default=4)
    parser.add_argument("--steps", type=positive, default=300, help="of each model of the mixture")
    add_json_file(parser)
    options = parser.parse_args()
    tokens, models = options.folder / "tokens", options.folder / "mixture"
    write_tokens(options.folder, tokens)
    settings = SETTINGS | MORE | {"run.steps": options.steps}
    arguments = [
        "--config",
        str(CONFIG),
        "--tokens",
        str(tokens),
        "--clusters",
        str(options.clusters),
        "--out",
        str(models),
    ]
    if code := mixture.main([*arguments, *overrides(settings)]):
        return code
    nats = dict(read_record(models).validation)
    for name, steps in (("dense", options.steps * options.clusters), ("share", options.steps)):
        dense = {"run.dir": options.folder, "run.name": name, "data.source": "tokens", "data.path": tokens}
        settings |= dense | {"run.steps": steps}
        run = [sys.executable, "-m", "jaxpar.train", "--config", str(CONFIG), *overrides(settings)]
        subprocess.run(run, check=True, stdout=subprocess.DEVNULL)
        nats[f"one run of {steps} steps"] = nats_of(options.folder / name, tokens)
    print(table_of(nats))
    write_json(options.json, nats)
    return 0


def nats_of(run: Path, tokens: Path) -> float:
    """Nats a token of a run, on the rows on which a mixture is measured."""
    (source,) = open_models([run])
    assert isinstance(source, SavedWeights), "a run of all weights"
    rows = validation_rows(open_token_folder(tokens, key="--folder"), source.config.data.sequence_length)[1]
    return float(-np.mean(log_probabilities(source, rows)))


def overrides(settings: Mapping[str, object]) -> list[str]:
    """The arguments of settings."""
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def write_tokens(folder: Path, tokens: Path) -> None:
    """The standard library as a token folder."""
    folder.mkdir(parents=True, exist_ok=True)
    root, text = Path(sysconfig.get_path("stdlib")), folder / "stdlib.jsonl"
    lines = [(root / path).read_bytes().decode(errors="replace") for path in paths(root)]
    text.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines if line))
    arguments = ["--input", str(text), "--train-bpe", str(BYTES), "--validation-fraction", "0.08", "--out", str(tokens)]
    subprocess.run([sys.executable, "-m", "jaxpar.prepare", *arguments], check=True)


if __name__ == "__main__":
    sys.exit(main())

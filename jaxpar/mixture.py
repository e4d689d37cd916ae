"""`python -m jaxpar.mixture --config X --tokens FOLDER --clusters K --out FOLDER`: models of clusters, mixed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from jaxpar.cli import Parser, command, positive, run_command
from jaxpar.config import UserError
from jaxpar.config.paths import user_path
from jaxpar.config.spelling import named, quoted

TAKEN = ("run.dir", "run.name", "data.source", "data.path")
"""Keys that the command sets."""

EPILOG = """\
Three stages, each of which continues where it was killed when the same command is repeated: the documents of
--tokens, a folder that python -m jaxpar.prepare made, in K balanced clusters; K runs of the configuration, each on its
cluster alone; and a router, fitted on validation documents. The folder --out is then a MODEL for generate, serve and
evaluate. Another machine may take a run: the command prints it. docs/paris.md has more.
"""


@command("interrupted; the same command continues it")
def main(arguments: Sequence[str]) -> int:
    """Make a mixture from the command line; the exit code: 0 done, that of a stage that failed, 2 a user error, 130
    interrupted."""
    options = _parser().parse_args(arguments)
    top = options.clusters if options.top is None else options.top
    if options.clusters < 2:
        raise UserError(f"--clusters {options.clusters}: expected 2 or more; one model is trained by jaxpar.train")
    if not 1 <= top <= options.clusters:
        raise UserError(f"--top {top}: expected from 1 to the {options.clusters} models of the mixture")
    for override in options.overrides:
        if (key := override.split("=")[0].strip()) in TAKEN:
            raise UserError(f"--set {key}: the mixture's runs set it; expected --tokens and --out alone")
    return _make(options, top)


def _parser() -> Parser:
    parser = Parser("jaxpar.mixture", "Train models on clusters of text that share nothing, and mix them.", EPILOG)
    parser.add_config(required=True)
    parser.add_argument("--tokens", metavar="FOLDER", type=Path, required=True, help="token folder of text to cluster")
    parser.add_argument("--clusters", metavar="K", type=positive, required=True, help="number of clusters and models")
    words = "compare documents by the mean of this model's last hidden states (default: by their hashed n-grams)"
    parser.add_argument("--cluster-by", metavar="MODEL", help=words)
    parser.add_argument("--cluster-seed", metavar="N", type=int, default=0, help="seed of the clusters (default: 0)")
    words = "models that are mixed at a token, those with the largest weights (default: all)"
    parser.add_argument("--top", metavar="N", type=int, help=words)
    parser.add_argument("--out", metavar="FOLDER", type=Path, required=True, help="folder of the runs and the mixture")
    return parser


def _make(options: argparse.Namespace, top: int) -> int:
    tokens, out = user_path(options.tokens, "--tokens"), user_path(options.out, "--out")
    clusters = [tokens / f"cluster-{one}" for one in range(options.clusters)]
    names = [f"expert-{one}" for one in range(options.clusters)]
    runs = [_training(options, out, name, cluster) for name, cluster in zip(names, clusters, strict=True)]
    _check(options, runs[0], tokens)
    chosen = [] if options.cluster_by is None else ["--cluster-by", options.cluster_by]
    stage = ["jaxpar.prepare", "--out", str(tokens), "--clusters", str(options.clusters)]
    _say(f"1/3 the text in {options.clusters} clusters")
    if code := run_command([*stage, "--cluster-seed", str(options.cluster_seed), *chosen]):
        return code
    for index, run in enumerate(runs, 1):
        _say(f"2/3 run {index} of {len(runs)}: python -m {' '.join(run)}")
        if code := run_command(run):
            return code
    _say("3/3 the router")
    from jaxpar.evaluation.mixture import make_mixture, table_of

    record = make_mixture(out, names, tokens, clusters, top, _say)
    _say(f"\nNats a token of validation text that the router was not fitted on:\n{table_of(record.validation)}\n")
    _say(f"{named(out)} is a MODEL that mixes {top} of {len(names)} models: python -m jaxpar.generate --model {out}")
    return 0


def _training(options: argparse.Namespace, out: Path, name: str, cluster: Path) -> list[str]:
    """The module and the arguments of a run."""
    values = {"run.dir": out, "run.name": name, "data.source": "tokens", "data.path": cluster}
    overrides = [*options.overrides, *(f"{key}={value}" for key, value in values.items())]
    return ["jaxpar.train", "--config", str(options.config), *(word for one in overrides for word in ("--set", one))]


def _check(options: argparse.Namespace, run: Sequence[str], tokens: Path) -> None:
    """Refuse a configuration that no run could have, and a folder without tokens, before anything is made."""
    from jaxpar.config import load_config
    from jaxpar.data.tokens.token_index import read_index
    from jaxpar.layout.checks.validate import validate

    config = load_config(options.config, run[4::2])
    if config.islands.folder is not None:
        raise UserError(
            f"islands.folder: {quoted(config.islands.folder)}: the models of a mixture share nothing, and these would "
            "exchange weights; expected null"
        )
    validate(config)
    read_index(tokens)


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())

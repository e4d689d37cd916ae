"""`python -m jaxpar.train --config X [--set section.key=value ...]`: train a model."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence

from jaxpar.config import UserError
from jaxpar.config.reference import help_text
from jaxpar.mesh.liveness import depart


def main(arguments: Sequence[str] | None = None) -> int:
    """Train from the command line; returns the exit code: 0 done, 1 the run had to stop, 2 the user's mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m jaxpar.train",
        description="Train a decoder on the mesh that a YAML file describes. Running it again continues the run.",
        epilog=help_text(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", metavar="FILE", help="YAML file; without one, every key has its default")
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="SECTION.KEY=VALUE",
        action="append",
        default=[],
        help="override a key of the file; may be given many times",
    )
    options = parser.parse_args(arguments)
    try:
        return _train(options.config, options.overrides)
    except UserError as error:
        print(f"jaxpar: {error}", file=sys.stderr)
        return depart(2, str(error))
    except KeyboardInterrupt:
        print("jaxpar: interrupted; the same command continues from the newest checkpoint", file=sys.stderr)
        return depart(130, "interrupted")


def _train(file: str | None, overrides: Sequence[str]) -> int:
    from jaxpar.config import load_config

    config = load_config(file, overrides)
    warnings.filterwarnings("ignore", module=r"(jax|orbax|flax|grain|tensorboardX)\b.*")
    from jaxpar.training.errors import TrainingError
    from jaxpar.training.trainer import Trainer

    try:
        Trainer(config).fit()
    except TrainingError as error:
        print(f"jaxpar: {error}", file=sys.stderr)
        return depart(1, str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())

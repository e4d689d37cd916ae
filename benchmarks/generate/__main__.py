"""Tokens per second of generation beside those of transformers, on a CPU in float32.

    python -m benchmarks.generate --transformers-python PATH --json generate.json

Both sides read the same model with random weights, have the same cores, and take turns in one run: jaxpar in this
process, `generate` of transformers with its default attention and cache in a child. The likeliest tokens are drawn. The
prompt is counted until the first new token, with what pads it; decoding is counted after it. Ratios are of turns of the
same round. Without torch and transformers in the Python that is named, jaxpar is measured alone.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.results import add_json_file, write_json
from jaxpar.cli import Parser, command, positive, report, without_gpus
from jaxpar.config import UserError


@command()
def main(arguments: Sequence[str]) -> None:
    """Command line; the exit code is 2 for a user error."""
    parser = Parser("benchmarks.generate", __doc__)
    words = "a Python with torch and transformers (default: this one)"
    parser.add_argument("--transformers-python", metavar="PATH", default=sys.executable, help=words)
    parser.add_argument("--threads", metavar="N", type=positive, default=2, help="cores of each side (default: 2)")
    parser.add_argument("--batch", metavar="N", type=positive, nargs="+", default=[1, 8], help="rows (default: 1 8)")
    words = "tokens of each prompt (default: 100 128; 100 are padded to 128)"
    parser.add_argument("--prompt-tokens", metavar="N", type=positive, nargs="+", default=[100, 128], help=words)
    parser.add_argument("--tokens", metavar="N", type=positive, default=64, help="new tokens (default: 64)")
    parser.add_argument("--rounds", metavar="N", type=positive, default=5, help="turns of each side (default: 5)")
    add_json_file(parser)
    options = parser.parse_args(arguments)
    cores = sorted(os.sched_getaffinity(0))
    if options.threads > len(cores):
        raise UserError(f"--threads {options.threads}: expected at most the cores that there are ({len(cores)})")
    if options.tokens < 2:
        raise UserError(f"--tokens {options.tokens}: expected at least 2, since the first one belongs to the prompt")
    os.sched_setaffinity(0, cores[: options.threads])  # before XLA and torch count them
    without_gpus()
    from benchmarks.generate.random_model import SMALL, write_random_model
    from benchmarks.generate.sides import Jaxpar, Side, Transformers, has_transformers
    from benchmarks.generate.turns import measured, table
    from benchmarks.turns import processor_name

    assert SMALL.vocab is not None
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        length = max(options.prompt_tokens) + options.tokens
        weights = write_random_model(Path(folder), SMALL, length)
        sides: dict[str, Side] = {"jaxpar": Jaxpar(Path(folder))}
        about = {"weights": weights, "cores": options.threads, "processor": processor_name()}
        if has_transformers(options.transformers_python):
            other = stack.enter_context(Transformers(options.transformers_python, Path(folder)))
            sides["transformers"], about["transformers"] = other, other.about
        else:
            report(f"torch and transformers do not import in {options.transformers_python}: jaxpar is measured alone.")
        rows = [
            measured(sides, SMALL.vocab, batch, prompt, options.tokens, options.rounds)
            for prompt in options.prompt_tokens
            for batch in options.batch
        ]
    import jax

    about |= {"jax": jax.__version__, "python": sys.version.split()[0], "load": os.getloadavg()[0]}
    write_json(options.json, {**about, "rows": rows})
    print(f"{weights:,} weights in float32, {options.threads} cores of {about['processor']}, load {about['load']:.1f}")
    print(table(rows))


if __name__ == "__main__":
    sys.exit(main())

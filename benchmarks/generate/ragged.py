"""Requests of unequal lengths: slots that are filled at once, batches that wait for their longest row, transformers.

    python -m benchmarks.generate.ragged --transformers-python PATH --json ragged.json

The model is that of `benchmarks.generate`. Each request has a prompt of 16 to 64 tokens and 10 to 200 new ones, at
random; the likeliest are drawn. Three sides take turns in one run on the same cores: continuous batching; the same
engine given a batch of requests, and the next one when all its rows are done; and `generate` of transformers, given the
same batches, which ends a batch with its longest row. Ratios are of turns of the same round.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.results import add_json_file, write_json
from jaxpar.cli import Parser, command, positive, report, without_gpus
from jaxpar.config import UserError

PROMPTS, NEW, WARM = (16, 64), (10, 200), 16


class Work(NamedTuple):
    """A request: its prompt, and so many new tokens."""

    prompt: list[int]
    tokens: int


class Done(NamedTuple):
    """Time and tokens of a side's turn."""

    seconds: float
    processor: float
    """Seconds for which the threads of its process computed: other programs of the machine change these little."""
    tokens: list[list[int]]
    busy: float | None = None
    """The share of slots' steps that were of use to a row."""


type Side = Callable[[Sequence[Work]], Done]


def drawn(requests: int, vocab: int) -> list[Work]:
    """Requests of unequal lengths."""
    rng = np.random.default_rng(0)
    return [
        Work(
            rng.integers(0, vocab, rng.integers(*PROMPTS, endpoint=True)).tolist(),
            int(rng.integers(*NEW, endpoint=True)),
        )
        for _ in range(requests)
    ]


def ours(generator: Any, slots: int, capacity: int, batches: bool) -> Side:
    """The engine, given all requests, or a batch of them after the other."""
    from jaxpar.generation.requests import Request

    def side(work: Sequence[Work]) -> Done:
        requests = [Request(one.prompt, one.tokens) for one in work]
        engine, size = generator.engine(slots, capacity), slots if batches else len(work)
        began, computed = time.perf_counter(), time.process_time()
        for first in range(0, len(work), size):
            for request in requests[first : first + size]:
                engine.add(request)
            while engine.busy:
                engine.step()
        seconds, computed, speed = time.perf_counter() - began, time.process_time() - computed, engine.speed
        return Done(seconds, computed, [request.rows[0].tokens for request in requests], speed.used / speed.steps)

    return side


def theirs(other: Any, slots: int) -> Side:
    """`generate` of transformers, given a batch after the other."""

    def side(work: Sequence[Work]) -> Done:
        seconds, computed, tokens = 0.0, 0.0, []
        for first in range(0, len(work), slots):
            batch = work[first : first + slots]
            turn = other.turn([one.prompt for one in batch], [one.tokens for one in batch])
            seconds, computed = seconds + turn.prompt + turn.decode, computed + turn.processor
            tokens += [row[: one.tokens] for row, one in zip(turn.tokens, batch, strict=True)]
        return Done(seconds, computed, tokens)

    return side


def measured(sides: Mapping[str, Side], work: Sequence[Work], rounds: int) -> dict[str, Any]:
    """New tokens per second of each side, ratios of the first to each other within a round, and shares of busy slots.

    Each side first has some of the requests, which compiles and is not counted; after each round another side begins.
    """
    from benchmarks.turns import spread

    turns: dict[str, list[Done]] = {name: [] for name in sides}
    for side in sides.values():
        side(work[:WARM])
    for number in range(rounds):
        names = list(sides)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            turns[name].append(sides[name](work))
            assert list(map(len, turns[name][-1].tokens)) == [one.tokens for one in work], "each has its tokens"
    total = sum(one.tokens for one in work)
    first, *others = turns
    pairs = lambda name: list(zip(turns[first], turns[name], strict=True))
    same = lambda name: np.mean(
        [a == b for one, other in zip(turns[first][0].tokens, turns[name][0].tokens, strict=True)
         for a, b in zip(one, other, strict=True)]
    )  # fmt: skip
    return {
        "requests": len(work), "tokens": total, "rounds": rounds,
        "rate": {name: spread([total / one.seconds for one in each]) for name, each in turns.items()},
        "ratio": {name: spread([other.seconds / one.seconds for one, other in pairs(name)]) for name in others},
        "processor_ratio": {
            name: spread([other.processor / one.processor for one, other in pairs(name)]) for name in others
        },
        "same_tokens": {name: float(same(name)) for name in others},
        "busy": {name: each[0].busy for name, each in turns.items() if each[0].busy is not None},
    }  # fmt: skip


def table(row: Mapping[str, Any]) -> str:
    """The rates for people."""
    lines = [f"{row['requests']} requests, {row['tokens']:,} new tokens; tokens/s, ratio (processors'), busy slots"]
    for name, rate in row["rate"].items():
        ratio, busy = row["ratio"].get(name), row["busy"].get(name)
        words = "" if ratio is None else f"{ratio['median']:.2f} ({row['processor_ratio'][name]['median']:.2f})"
        lines.append(f"{name:22}{rate['median']:8,.0f}   {words:22}{'' if busy is None else f'{busy:.0%}'}")
    return "\n".join(lines)


@command()
def main(arguments: Sequence[str]) -> None:
    """Command line; the exit code is 2 for a user error."""
    parser = Parser("benchmarks.generate.ragged", __doc__)
    words = "a Python with torch and transformers (default: this one)"
    parser.add_argument("--transformers-python", metavar="PATH", default=sys.executable, help=words)
    parser.add_argument("--threads", metavar="N", type=positive, default=2, help="cores of each side (default: 2)")
    parser.add_argument("--slots", metavar="N", type=positive, default=8, help="rows at once (default: 8)")
    parser.add_argument("--requests", metavar="N", type=positive, default=160, help="default: 160")
    parser.add_argument("--rounds", metavar="N", type=positive, default=3, help="turns of each side (default: 3)")
    add_json_file(parser)
    options = parser.parse_args(arguments)
    cores = sorted(os.sched_getaffinity(0))
    if options.threads > len(cores):
        raise UserError(f"--threads {options.threads}: expected at most the cores that there are ({len(cores)})")
    os.sched_setaffinity(0, cores[: options.threads])  # before XLA and torch count them
    without_gpus()
    from benchmarks.generate.random_model import SMALL, write_random_model
    from benchmarks.generate.sides import Jaxpar, Transformers, has_transformers
    from benchmarks.turns import processor_name

    assert SMALL.vocab is not None
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        capacity = PROMPTS[1] + NEW[1]
        weights = write_random_model(Path(folder), SMALL, capacity)
        generator = Jaxpar(Path(folder)).generator
        slots = options.slots
        sides = {
            "jaxpar": ours(generator, slots, capacity, False),
            "jaxpar in batches": ours(generator, slots, capacity, True),
        }
        about: dict[str, Any] = {"weights": weights, "cores": options.threads, "processor": processor_name()}
        if has_transformers(options.transformers_python):
            other = stack.enter_context(Transformers(options.transformers_python, Path(folder)))
            sides["transformers"], about["transformers"] = theirs(other, slots), other.about
        else:
            report(f"torch and transformers do not import in {options.transformers_python}: jaxpar is measured alone.")
        row = measured(sides, drawn(options.requests, SMALL.vocab), options.rounds)
    import jax

    about |= {"jax": jax.__version__, "slots": slots, "load": os.getloadavg()[0]}
    write_json(options.json, {**about, **row})
    print(f"{weights:,} weights in float32, {options.threads} cores of {about['processor']}, load {about['load']:.1f}")
    print(table(row))


if __name__ == "__main__":
    sys.exit(main())

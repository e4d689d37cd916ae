"""Combines features at random and compares each combination with one device: `make fuzz SECONDS=600`.

    python -m tests.fuzz --seconds 600 [--seed 0]
    python -m tests.fuzz --case "ring, gpt2, context=2, zero=3"

A seed is a combination, and the next one is the seed after it. What the checks of the configuration refuse, with a
sentence, is passed over. Everything else that has not the numbers of one device is printed, with the smallest
combination that still fails: a line for `tests/fuzz/rows.txt`, whose lines are tested.
"""

import argparse
import gc
import sys
import time

from tests import conftest

assert conftest.LIMIT  # it sets up the devices of the tests, before anything asks for devices


def main(arguments: list[str]) -> int:
    """Run combinations; the exit code is 1 if any fails."""
    import jax

    from tests.fuzz.case import SIZES, Case, draw, failure, parse, refused, smallest

    parser = argparse.ArgumentParser("tests.fuzz")
    parser.add_argument("--seconds", type=float, default=0.0, help="how long to go on (default: one combination)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the first one (default: the time)")
    parser.add_argument("--case", help="one combination, as it was printed")
    options = parser.parse_args(arguments)
    end, seed, counts = time.monotonic() + options.seconds, options.seed, {"equal": 0, "refused": 0, "wrong": 0}
    wrong: list[Case] = []
    for module, name, value in SIZES:
        setattr(module, name, value)
    while sum(counts.values()) == 0 or (time.monotonic() < end and not options.case):
        case = parse(options.case) if options.case else draw(seed)
        print(f"{seed}: {case}", end="", flush=True)  # before it runs, should it end the process
        begun, why = time.monotonic(), refused(case)
        outcome = "refused" if why else "equal"
        if not why and (why := failure(case)):
            outcome = "wrong"
            wrong.append(case)
        counts[outcome] += 1
        print(f" - {outcome} {why} ({time.monotonic() - begun:.0f} s)", flush=True)
        seed += 1
        jax.clear_caches()
        gc.collect()
    print(", ".join(f"{number} {outcome}" for outcome, number in counts.items()), flush=True)
    for case in wrong if not options.case else ():
        print(f'python -m tests.fuzz --case "{smallest(case)}"', flush=True)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Combines features at random and compares each combination with one device: `make fuzz SECONDS=600`.

    python -m tests.fuzz --seconds 600 [--seed 0]
    python -m tests.fuzz --case "ring, gpt2, context=2, zero=3"

A seed is a combination, and the next one is the seed after it. Combinations that are refused with a sentence are passed
over, and counted by what refused them: the checks of the configuration, the plan, or (late) neither. Everything else
that has not the finite numbers of one device is printed, at the end with the smallest combination that still fails: a
line for `tests/fuzz/rows.txt`, whose lines are tested.
"""

import argparse
import sys
import time

from tests import conftest  # first: it sets up the devices of the tests

assert conftest.LIMIT


def main(arguments: list[str]) -> int:
    """Run combinations; the exit code is 1 if any fails."""
    import jax

    from tests.fuzz.case import OUTCOMES, SIZES, WRONG, Case, draw, parse

    parser = argparse.ArgumentParser("tests.fuzz")
    parser.add_argument("--seconds", type=float, default=0.0, help="how long to go on (default: one combination)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the first one (default: the time)")
    parser.add_argument("--case", type=parse, help="one combination, as it was printed")
    options = parser.parse_args(arguments)
    for module, name, value in SIZES:
        setattr(module, name, value)
    end, seed, outcomes, wrong = time.monotonic() + options.seconds, options.seed, [], list[Case]()
    while not outcomes or (time.monotonic() < end and not options.case):
        case, begun = options.case or draw(seed), time.monotonic()
        print(f"{seed}: {case}", end="", flush=True)  # before it runs, should it end the process
        outcome, why = case.outcome()
        outcomes.append(outcome)
        wrong += [case] if outcome == WRONG else []
        print(f" - {outcome} {why} ({time.monotonic() - begun:.0f} s)", flush=True)
        seed += 1
        jax.clear_caches()
    print(", ".join(f"{outcomes.count(each)} {each}" for each in OUTCOMES), flush=True)
    for case in wrong if not options.case else ():
        print(f'python -m tests.fuzz --case "{case.smallest()}"', flush=True)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

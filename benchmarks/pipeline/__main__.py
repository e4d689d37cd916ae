"""Pipeline schedules on virtual CPU devices: the executed time of a step beside the simulated one.

    python -m benchmarks.pipeline --pipe 2 --microbatches 4

This checks the structure of ticks, not the speed of GPUs: that a step runs the ticks of its table, each with the
actions that the lockstep simulation counts, and nothing else. The simulation uses the times of single
actions, which programs without the executor measure on the same mesh, with the time of a step without ticks, and with
that of making the buffers that a step keeps between ticks. A step is its gradients, without the optimizer. The programs
take turns, round after round; times are medians over the rounds, and the spread is that of executed / predicted within
single rounds.

Two clocks are used: wall time, and CPU time, which other jobs on the machine disturb little: the time for which this
process computed, divided by its devices, each of which has one thread. Uniform ticks keep all devices busy, so CPU time
counts them like wall time, without waiting. Devices that branch wait without computing: there the prediction for CPU
time is their work alone, and only wall time shows ticks, on a machine with an idle core for each device.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.cpu_devices import one_thread_devices
from benchmarks.results import add_json_file, write_json
from jaxpar.cli import Parser, command
from jaxpar.pages.units import MILLI, seconds
from jaxpar.pipeline.schedules import SCHEDULES

NAMES = [name for name, family in SCHEDULES.items() if not family.one_rank]

WITHIN = 0.10
"""How far executed and predicted times may lie apart."""


@command()
def main(arguments: Sequence[str]) -> None:
    """Command line; the exit code is 2 for a user error."""
    parser = Parser("benchmarks.pipeline", __doc__)
    parser.add_argument("--pipe", type=int, default=2, help="pipeline stages, each a virtual device")
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--layers", type=int, help="default: two for each stage")
    parser.add_argument("--schedules", nargs="*", choices=NAMES, default=NAMES, help="default: all")
    parser.add_argument("--branching", nargs="*", choices=NAMES, default=["1f1b"],
                        help="schedules to run with branching ticks too (default: 1f1b)")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=7, help="turns that each program gets")
    parser.add_argument("--repeats", type=int, default=6, help="actions in a row where a single action is timed")
    add_json_file(parser)
    options = parser.parse_args(arguments)
    one_thread_devices(options.pipe)
    from benchmarks.pipeline.steps import Case, Sizes, measure  # imports JAX, which reads the number of devices once

    cases = [*map(Case, options.schedules), *(Case(name, branching=True) for name in options.branching)]
    sizes = Sizes(options.pipe, options.microbatches, options.layers or 2 * options.pipe)
    result = measure(sizes, cases, rounds=options.rounds, repeats=options.repeats)
    write_json(options.json, result)
    print(table(result))


def table(result: Mapping[str, Any]) -> str:
    """The results for people."""
    machine, sizes = result["machine"], result["sizes"]
    lines = [
        f"Virtual CPU devices: {machine['cores']} cores of {machine['processor']}, load {machine['load'][0]:.1f} "
        f"({machine['load_before'][0]:.1f} at the start). Structure of ticks, not the speed of GPUs.",
        f"pipe {sizes['pipe']}, {sizes['microbatches']} microbatches of {sizes['rows'] * sizes['sequence']} tokens, "
        f"{sizes['layers']} layers, embed {sizes['embed']}, vocabulary {sizes['vocab']}; "
        f"{result['rounds']} rounds, {seconds(result['compile_s'])} compiling and "
        f"{seconds(result['measure_s'])} measuring",
        "",
        f"{'one action, ms':42}{'wall':>9}{'lowest':>9}{'highest':>9}   {'processor':>9}{'lowest':>9}{'highest':>9}",
    ]
    for name, clocks in result["actions_s"].items():
        found = [
            "".join(f"{clocks[clock][key] / MILLI:9.2f}" for key in ("median", "lowest", "highest"))
            for clock in ("wall", "processor")
        ]
        lines.append(f"{name:42}" + "   ".join(found))
    columns = f"{'predicted':>11}{'executed':>10}{'ratio':>7}{'in rounds':>12}"
    lines += ["", f"{'a step, ms':18}{'':5}  {'by the wall clock':40}{'by the processor clock':>40}"]
    lines += [f"{'schedule':18}{'ticks':>5}{columns}{columns}"]
    lines += [_row(row) for row in result["schedules"]]
    for clock in ("processor", "wall"):
        ratios = [row[clock]["ratio"] for row in result["schedules"]]
        near = sum(abs(ratio - 1) <= WITHIN for ratio in ratios)
        lines.append(f"{clock} clock: {near} of {len(ratios)} within {WITHIN:.0%} of the prediction")
    return "\n".join(lines)


def _row(row: Mapping[str, Any]) -> str:
    text = f"{row['schedule']:18}{row['ticks']:5}"
    for clock in ("wall", "processor"):
        found = row[clock]
        spread = f"{found['ratio_of_rounds']['lowest']:.2f}-{found['ratio_of_rounds']['highest']:.2f}"
        executed = found["executed_s"]["median"] / MILLI
        text += f"{found['predicted_s'] / MILLI:11.1f}{executed:10.1f}{found['ratio']:7.3f}{spread:>12}"
    return text


if __name__ == "__main__":
    sys.exit(main())

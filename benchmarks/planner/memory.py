"""The planner's memory against what XLA's GPU compiler allocates, on layouts of real models that no GPU is needed for.

    python -m benchmarks.planner.memory

Each layout is compiled for its cluster (half a minute on two idle cores, remembered in the compiler's cache), and what
a step takes of a device (arguments, output, temporaries) is printed beside the planner's closed form.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxpar.cli import Parser, command
from jaxpar.compiler.compile import DEFAULT_CACHE, compile_step, plan_for
from jaxpar.compiler.report import Analysis, make_report
from jaxpar.config import load_config
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layout.memory.estimate import estimate_memory
from jaxpar.pages.units import GIB, percent

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Case:
    """A layout of a model of `configs/`."""

    file: str
    cluster: str
    layout: str
    """Keys of `parallel`, as `name=value` with spaces between them."""
    others: tuple[str, ...] = ()
    """Other keys, as `section.key=value`."""

    def settings(self) -> list[str]:
        """Overrides of the configuration; axes that are not named are 1."""
        axes = dict.fromkeys(("pipe", "replica", "fsdp", "context", "tensor"), "1")
        chosen = axes | {"microbatches": "1"} | dict(pair.split("=") for pair in self.layout.split())
        held = [f"parallel.{name}={value}" for name, value in chosen.items()]
        return [*held, "attention.backend=xla", "run.compile_cache=null", *self.others]


EIGHT, SMALLER, LARGE = "llama3_8b", "qwen3_0p6b", "gpt3_175b_32k"
CASES = (
    Case(EIGHT, "h100:1x8", "fsdp=8 zero=3 microbatches=8"),
    Case(EIGHT, "h100:2x8", "fsdp=16 zero=2 microbatches=4", ("memory.remat=full",)),
    Case(EIGHT, "h100:2x8", "replica=2 fsdp=8 zero=3 microbatches=4"),
    Case(EIGHT, "h100:2x8", "fsdp=8 tensor=2 zero=3 microbatches=8"),
    Case(EIGHT, "h100:2x8", "fsdp=4 tensor=4 zero=1 microbatches=16"),
    Case(EIGHT, "h100:2x8", "fsdp=4 context=4 zero=3 microbatches=16 context_strategy=ring"),
    Case(EIGHT, "h100:2x8", "fsdp=4 context=4 zero=3 microbatches=16 context_strategy=ulysses"),
    Case(EIGHT, "h100:2x8", "context=2 tensor=4 fsdp=2 zero=3 microbatches=32 context_strategy=allgather"),
    Case(EIGHT, "h100:2x8", "pipe=2 fsdp=4 tensor=2 zero=1 microbatches=16 schedule=1f1b"),
    Case(EIGHT, "h100:2x8", "pipe=4 fsdp=2 tensor=2 zero=1 microbatches=32 schedule=zb-uniform",
         ("memory.remat=full",)),
    Case(EIGHT, "h100:2x8", "pipe=2 fsdp=4 tensor=2 zero=1 microbatches=16 schedule=gpipe", ("memory.remat=full",)),
    Case(EIGHT, "h100:2x8", "pipe=2 fsdp=8 zero=3 microbatches=8 schedule=breadth-first virtual_stages=2",
         ("memory.remat=full",)),
    Case(EIGHT, "h100:1x8", "fsdp=8 zero=2 microbatches=8", ("memory.remat=full", "memory.optimizer_offload=host")),
    Case(EIGHT, "h100:1x8", "fsdp=8 zero=3 microbatches=8", ("memory.remat=selective",)),
    Case(EIGHT, "h100:1x8", "fsdp=8 zero=3 microbatches=8", ("memory.remat=none", "memory.offload_fraction=0.3")),
    Case(SMALLER, "h100:1x8", "replica=8 zero=0 microbatches=8"),
    Case(SMALLER, "h100:1x8", "fsdp=8 zero=3 microbatches=4", ("memory.offload_fraction=0.3",)),
    Case(LARGE, "h800:32x8", "pipe=8 tensor=8 fsdp=4 zero=1 microbatches=32 schedule=1f1b"),
    Case(LARGE, "h800:32x8", "pipe=4 context=4 tensor=8 fsdp=2 zero=1 microbatches=64 schedule=1f1b"),
    Case(LARGE, "h800:32x8", "context=8 tensor=8 fsdp=4 zero=3 microbatches=32"),
)  # fmt: skip
"""Twenty: each ZeRO stage, axis, preset, strategy and kind of schedule at least once."""


def compared(case: Case) -> tuple[float, float]:
    """GiB of a device that the planner predicts, and that XLA allocates. Raises `UserError`."""
    cluster = parse_cluster(case.cluster)
    config = load_config(ROOT / "configs" / f"{case.file}.yaml", case.settings())
    filled, plan = plan_for(config, cluster)
    predicted = estimate_memory(filled, plan).device
    compilation = compile_step(config, cluster, cache=DEFAULT_CACHE)
    allocated = make_report(Analysis(compilation, cluster), case.file).allocated_bytes
    return predicted / GIB, allocated / GIB


def row(case: Case, predicted: float, allocated: float) -> str:
    """A row of the table."""
    layout = " ".join((case.layout, *(text.removeprefix("memory.") for text in case.others)))
    ratio = predicted / allocated
    return f"| {case.file} | {layout} | {case.cluster} | {predicted:.1f} | {allocated:.1f} | {ratio:.3f} |"


@command()
def main(arguments: Sequence[str]) -> None:
    """Command line; the exit code is 2 for a user error."""
    Parser("benchmarks.planner.memory", __doc__).parse_args(arguments)
    print("| configuration | layout | cluster | predicted, GiB | XLA, GiB | ratio |\n|---|---|---|---|---|---|")
    errors = []
    for case in CASES:
        predicted, allocated = compared(case)
        errors.append(abs(predicted / allocated - 1))
        print(row(case, predicted, allocated), flush=True)
    print(f"The median error is {percent(statistics.median(errors))}, the worst {percent(max(errors))}.")


if __name__ == "__main__":
    sys.exit(main())

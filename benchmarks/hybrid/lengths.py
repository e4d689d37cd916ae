"""Memory and time of a step by the length of its row: attention beside a hybrid beside layers with a state alone.

    python -m benchmarks.hybrid.lengths --folder docs/pictures     # writes hybrid-lengths.svg, and lengths.csv here

Each is a compile for 64 GPUs that need not be present (`jaxpar.compiler`, which remembers results), of one row over all
of them, with the layers' inputs kept and the rest recomputed (`lengths.yaml`). Memory is what XLA allocates; nothing
runs, so the time is the inspector's estimate. Nine compiles take 10 to 20 minutes.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import add_json_file, write_json
from jaxpar.cli import Parser, command, positive
from jaxpar.compiler.compile import compile_step
from jaxpar.compiler.report import Analysis, make_report
from jaxpar.config import load_config
from jaxpar.hardware.cluster import Cluster, parse_cluster
from jaxpar.pages.units import GIB, seconds

CONFIG = Path(__file__).with_name("lengths.yaml")
STACKS = {
    "attention": (),
    "3 gated DeltaNet to 1 attention": (
        "model.kinds={state: {mixer: gated_deltanet}, full: {}}",
        "model.pattern={unit: [state, state, state, full]}",
    ),
    (ALONE := "gated DeltaNet"): ("model.mixer=gated_deltanet",),
}
"""Settings of the four layers."""
LENGTHS = (1 << 17, 1 << 20, 1 << 24)
OF_KERNELS = 1 << 21
"""Tokens up to which our attention kernel takes a row. Plain XLA attends to longer ones, in blocks: its memory is about
that of the kernel, and its time is not."""
NAME = "hybrid-lengths"


def measure(stack: str, length: int, cluster: Cluster) -> dict[str, Any]:
    """A compiled step of a row of `length`."""
    attends = STACKS[stack] != STACKS[ALONE]
    backend = "mosaic" if attends and length <= OF_KERNELS else "xla"
    settings = [*STACKS[stack], f"data.sequence_length={length}", f"attention.backend={backend}"]
    report = make_report(Analysis(compile_step(load_config(CONFIG, settings), cluster), cluster), NAME)
    took = report.compute_seconds + report.slowed_seconds + report.exposed_seconds
    row = {
        "stack": stack, "tokens": length, "gib": round(report.allocated_bytes / GIB, 2),
        "usable_gib": round((report.device_bytes - report.reserve_bytes) / GIB, 2),
        "seconds": None if attends and backend == "xla" else float(f"{took:.4g}"),
    }  # fmt: skip
    print(f"{row} (compiled in {seconds(report.compile_seconds)})", file=sys.stderr, flush=True)
    return row


def draw(rows: Sequence[dict[str, Any]], title: str, file: Path) -> None:
    """Memory and time by length, a line for each stack, as an SVG."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    FigureCanvasSVG(figure)
    figure.suptitle(title, fontsize=10)
    panels = figure.subplots(1, 2)
    for panel, key, label in zip(
        panels, ("gib", "seconds"), ("GiB of a GPU, compiled", "seconds of a step, estimated"), strict=True
    ):
        for stack in STACKS:
            points = [(row["tokens"], row[key]) for row in rows if row["stack"] == stack and row[key] is not None]
            panel.plot(*zip(*points, strict=True), marker="o", label=stack)
        panel.set(xscale="log", yscale="log", xlabel="tokens of a row", ylabel=label)
        lengths = sorted({row["tokens"] for row in rows})
        panel.set_xticks(lengths, [f"{n >> 20}M" if n >> 20 else f"{n >> 10}k" for n in lengths], minor=False)
        panel.set_xticks([], minor=True)
        panel.grid(visible=True, alpha=0.3)
    panels[0].axhline(rows[0]["usable_gib"], color="grey", linestyle="--", label="memory of a GPU")
    panels[0].legend(fontsize=8)
    with matplotlib.rc_context({"svg.hashsalt": NAME}):
        figure.savefig(file, metadata={"Date": None})


@command()
def main(arguments: Sequence[str]) -> None:
    """Command line; the exit code is 2 for a user error."""
    parser = Parser("benchmarks.hybrid.lengths", __doc__)
    parser.add_argument("--cluster", default="h100:8x8", help="as for jaxpar.inspect")
    parser.add_argument("--lengths", nargs="+", type=positive, default=list(LENGTHS), help="tokens")
    parser.add_argument("--folder", type=Path, default=Path("."), help="of the picture")
    add_json_file(parser)
    options = parser.parse_args(arguments)
    cluster = parse_cluster(options.cluster)
    rows = [measure(stack, length, cluster) for length in options.lengths for stack in STACKS]
    write_json(options.json, rows)
    with Path(__file__).with_name("lengths.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    title = f"A step of 4 layers, embed 2,048, 16 heads of 128, one row over {cluster.devices} {cluster.gpu.name}"
    draw(rows, title, options.folder / f"{NAME}.svg")


if __name__ == "__main__":
    main()

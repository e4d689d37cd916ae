"""A layout in words, for tables, and what limits its speed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from jaxpar.config.axes import MESH_AXES
from jaxpar.config.kinds import kind_clause
from jaxpar.config.plan import AxisSizes, Plan
from jaxpar.config.schema import ParallelConfig
from jaxpar.config.spelling import join_or, printable
from jaxpar.cost.layout import Layout
from jaxpar.memory.remat import nearest_preset
from jaxpar.pages.units import percent, plural, seconds, size
from jaxpar.planner.search.asked import never_measured
from jaxpar.planner.search.candidate import Candidate, Planned
from jaxpar.planner.search.heterogeneous import StepTimer
from jaxpar.planner.step_time.chunks import why_padded
from jaxpar.planner.step_time.interval import Spread

REMAT = {
    "none": "every activation stays in memory from forward to backward, and nothing is computed twice",
    "gemm_last": "outputs of matmuls and attention stay; cheap functions of them are computed again",
    "selective": "all stays but attention's inside, which is computed again",
    "full": "only each layer's input stays, and the layer is computed again",
}
"""The presets of `memory.remat` in words."""

MARK = "*"
"""Beside the mesh of a layout with a mechanism that no measured run has used."""
INTERVAL = "80%"
"""The column of the interval that holds four of five measured steps."""
LEFT = ("mesh", "schedule", "context", "remat", "host")
"""Columns that are aligned left."""

PARTS = {
    "matmuls": (
        "matrix products",
        "it computes most of the time: larger matrices (less tensor parallelism) or a faster GPU would help",
    ),
    "attention": ("attention kernels", "rows are long; only shorter rows or a sliding window would reduce attention"),
    "other": (
        "norms, activations, residuals, logits: memory traffic",
        "memory traffic between matmuls; higher memory bandwidth would help",
    ),
    "recomputation": (
        "recomputing activations in the backward", "memory: with more of it, less would be recomputed"
    ),
    "tensor": ("waiting for messages over tensor", "the link between tensor ranks"),
    "context": ("waiting for messages over context", "the link between context ranks"),
    "exchange": (
        "waiting for tokens on their way to experts and back",
        "the link between expert ranks: fewer of them, or less room (parallel.experts.capacity), send less",
    ),
    "scales": (
        "waiting for the largest magnitudes of FP8 operands",
        "a message over all ranks for each group of matmuls: precision.matmul: fp8_delayed has none",
    ),
    "data": (
        "waiting for messages over replica, fsdp and expert",
        "the network between data ranks: a larger batch would hide or share it",
    ),
    "offload": ("waiting for copies to and from the host", "the link to the host's memory"),
    "bubble": (
        "waiting for other pipeline ranks (their loss included)",
        "the pipeline: more microbatches (a larger batch) would fill it",
    ),
    "slices": ("copies of weights and gradients from and into stacks", "fewer microbatches"),
    "stragglers": ("waiting for the slowest host", "the number of hosts"),
    "islands": (
        "waiting for outer gradients of other islands",
        "the link between islands: a larger islands.every, islands.wire, or islands.delay with fragments",
    ),
    "optimizer": ("updating weights", "the bandwidth of the memory that holds the optimizer's state"),
}  # fmt: skip
"""Each part of a step's time: what it is; and what causes it, or would reduce it."""
PINNED = "pinned, on the host"


def columns(candidate: Candidate, index: int, batch: int, spread: Spread | None) -> dict[str, str]:
    """The cells of a layout by the heads of their columns.

    Args:
        candidate: the layout.
        index: among the plans.
        batch: rows of a step.
        spread: of measured steps around predicted ones; None leaves the interval out.
    """
    layout, time = candidate.layout, candidate.time
    interval = {} if spread is None else {INTERVAL: " to ".join(map(seconds, spread.interval(candidate.seconds)))}
    return {
        "": str(index),
        "mesh": axes(layout) + (f" {MARK}" if never_measured(layout) else ""),
        "rows": str(layout.microbatch),
        "µb": str(layout.microbatches(batch)),
        "schedule": schedule(layout),
        "ZeRO": str(layout.zero),
        "context": layout.context_strategy if layout.context > 1 else "-",
        "remat": remat(layout),
        "host": host(layout),
        "step": seconds(candidate.seconds),
        **interval,
        "tokens/s/GPU": f"{time.tokens_per_s_per_gpu:,.0f}",
        "MFU": percent(time.mfu),
        "memory": size(candidate.memory.device),
    }


def axes(layout: Layout | AxisSizes) -> str:
    """`pipe 8 x tensor 8`."""
    named = ((axis, getattr(layout, axis)) for axis in MESH_AXES)
    return " x ".join(f"{axis} {size}" for axis, size in named if size > 1) or "one device"


def schedule(layout: Layout) -> str:
    """Name and virtual stages."""
    if layout.pipe == 1:
        return "-"
    chunks = f", {layout.virtual_stages} chunks" if layout.virtual_stages > 1 else ""
    return f"{layout.schedule}{chunks}{', shared ends' if layout.shared_embed_and_head else ''}"


def in_one_line(layout: Layout) -> str:
    """`pipe 2 x tensor 4, 1f1b, ZeRO-1, remat full, optimizer on the host`."""
    parts = [
        axes(layout),
        *([schedule(layout)] if layout.pipe > 1 else []),
        *([f"ZeRO-{layout.zero}"] if layout.zero else []),
        f"remat {remat(layout)}",
        *([f"{host(layout)} on the host"] if host(layout) != "-" else []),
    ]
    return ", ".join(parts)


def remat(layout: Layout) -> str:
    """A preset, or the number of layers of each, wherever they are: `none except 1 (2 layers)`, `full (30 layers)`."""
    if isinstance(layout.remat, str):
        return layout.remat
    names, counts = [], Counter[tuple[tuple[str, str], ...]]()
    for layers, treatments in layout.remat:
        counts[treatments] += layers
    for treatments, layers in counts.items():
        preset, changed = nearest_preset(dict(treatments))
        but = f" except {len(changed)}" if changed else ""
        names.append(f"{preset}{but} ({plural(layers, 'layer')})")
    return ", ".join(names)


def activations(treatments: Mapping[str, str]) -> str:
    """A phrase for the remat of some layers: the nearest preset, and the differences from it."""
    preset, changed = nearest_preset(treatments)
    but = f"; but {', '.join(f'{name}: {treatment}' for name, treatment in changed.items())}" if changed else ""
    return f"remat {preset}: {REMAT[preset]}{but}"


def batch(ranks: int, rows: int, microbatches: int) -> str:
    """`4 data ranks x 2 rows x 8 microbatches`."""
    return f"{plural(ranks, 'data rank')} x {plural(rows, 'row')} x {plural(microbatches, 'microbatch')}"


def host(layout: Layout) -> str:
    """A phrase for the arrays that are stored on the host."""
    words = [f"{percent(layout.offload_fraction, digits=0)} of activations"] if layout.offload_fraction else []
    words = ["activations"] if not words and layout.offloads_names else words
    return ", ".join([*words, *(["optimizer"] if layout.optimizer_offload else [])]) or "-"


def meanings(plans: Sequence[Planned]) -> list[str]:
    """A sentence for each word of a table of plans that is not of every day."""
    layouts = [one.candidate.layout for one in plans]
    text = " ".join(f"{remat(layout)} {schedule(layout)}" for layout in layouts)
    explanations = [f"remat {preset}: {what}" for preset, what in REMAT.items() if re.search(rf"\b{preset}\b", text)]
    if " except " in text:
        explanations.append("except N: all activations except N, which plan.json names")
    if "chunks" in text:
        explanations.append("chunks: parts of the layers that each pipe rank has, which it takes in turn")
    if "shared ends" in text:
        explanations.append("shared ends: embedding and head are split over all pipe ranks")
    if any(layout.offload_fraction or layout.offloads_names for layout in layouts):
        explanations.append(
            "host: what waits in the host's memory; of activations the part between forward and backward"
        )
    return explanations


def without_evidence(plans: Sequence[Planned]) -> str | None:
    """A legend of the marks in a table of plans; None where none has one."""
    names = sorted({name for one in plans for name in never_measured(one.candidate.layout)})
    if not names and plans[0].plan.experts:
        return "Intervals are those of dense models: two runs with experts were compared (docs/prediction-errors.md)."
    if not names:
        return None
    return f"{MARK} never measured: no published run used {join_or(names)}; --avoid {names[0]} leaves it out."


def certainty(plans: Sequence[Planned], spread: Spread) -> str:
    """Sentences on the intervals, the knowledge of the system, and the plans that may be as fast as the best."""
    best, *others = (one.candidate.seconds for one in plans)
    text = "80%: four of five measured steps are inside, as of published runs of other systems"
    if spread.runs:
        ratio = spread.factor - 1
        text = f"80%: after runs that took {percent(abs(ratio))} {'more' if ratio > 0 else 'less'} time than predicted"
    near = sum(spread.alike(best, other) for other in others)
    if not others:
        return f"{text}."
    if not near:
        return f"{text}; runs of one system differ less than the plans do: 1 is the fastest."
    which = "the next" if near == 1 else f"the next {near}" if near < len(others) else "all the others"
    return f"{text}; intervals within one system overlap: {which} may be as fast as 1."


def exchanges(plan: Plan, parallel: ParallelConfig) -> list[str]:
    """How tokens reach the experts of each kind of layers, and for which load the time is predicted."""
    if not plan.experts:
        return []
    slower = []
    if any(one.products.name == "xla" for one in plan.experts.values()):
        slower = ["products are timed as those of xla, a loop; a kernel takes less (parallel.experts.backend)"]
    if plan.axes.expert * plan.axes.tensor == 1:
        return ["each GPU has all experts, and tokens stay where they are", *slower]
    balance = (
        "with equal load" if parallel.experts.imbalance == 1 else f"for {parallel.experts.imbalance:g} times the mean"
    )
    timed = f"timed {balance} on the fullest rank (parallel.experts.imbalance; a run measures experts/rank_load)"
    return [
        f"{one.exchange.name}{kind_clause(kind)}: {one.exchange.reason}; {timed}" for kind, one in plan.experts.items()
    ] + slower


def stages(planned: Planned, timer: StepTimer) -> list[str]:
    """On heterogeneous clusters: which hosts hold which stages, and why they are as long as they are."""
    cluster, layout = planned.cluster, planned.candidate.layout
    if not cluster.is_heterogeneous or layout.islands > 1:
        return []
    if layout.pipe == 1:
        return [f"no pipeline: all GPUs wait for the slowest ones ({cluster.gpu.name}) and the slowest network"]
    lines = list(map(str, planned.stages))
    if layout.stage_layers is not None:  # predicted alike, without the changes by verification and by placement
        uneven, equal = (timer.step(one).seconds for one in (layout, replace(layout, stage_layers=None)))
        longer = percent(equal / uneven - 1)
        lines.append(f"lengths follow the speed of the GPUs: equal stages would take {longer} more time")
    elif (why := why_padded(layout)) is not None:
        lines.append(f"equal, since padding rows of shorter chunks take time: {why}")
    return lines


def limit(planned: Planned) -> str:
    """The largest loss of time of a layout, its cause, and the memory that is left."""
    candidate = planned.candidate
    losses = {name: value for name, value in candidate.time.breakdown.items() if name not in ("matmuls", "attention")}
    worst = max(losses, key=losses.__getitem__)
    what, cause = PARTS[worst]
    room = f"{size(planned.usable - candidate.memory.device)} of the {size(planned.usable)}"
    text = f"{what}, {percent(losses[worst], candidate.seconds)} of the step ({cause})."
    return f"{text} {room} that may be planned for on a GPU are left."


def difference(best: Candidate, other: Candidate) -> str:
    """How much slower another layout is, and where it loses the time."""
    lost = {name: other.time.breakdown.get(name, 0.0) - value for name, value in best.time.breakdown.items()}
    worst = max(lost, key=lost.__getitem__)
    slower = other.seconds / best.seconds - 1
    more = f"{seconds(lost[worst])} more of {PARTS[worst][0]}" if lost[worst] > 0 else "about the same"
    return (
        f"{percent(slower)} slower: {more}"
        if slower >= 0
        else f"{percent(-slower)} faster, but not compiled or too large"
    )


def parts(breakdown: Mapping[str, float], step: float) -> list[str]:
    """The seconds of the parts of a step, the longest first; a millionth of it is what sums round to."""
    what = lambda name: PARTS[name][0] if name in PARTS else printable(name)
    return [
        f"{printable(name):<14}{seconds(spent):>9} {percent(spent, step):>6}  {what(name)}"
        for name, spent in sorted(breakdown.items(), key=lambda item: -item[1])
        if spent > 1e-6 * step
    ]

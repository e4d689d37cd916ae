"""What the page's pictures show, in pixels: memory over the program, and one layer over time."""

from __future__ import annotations

from typing import Any

from jaxpar.compiler.report.layer_schedule import LayerSchedule, Span
from jaxpar.compiler.report.memory_timeline import MemoryTimeline
from jaxpar.config.spelling import spaced
from jaxpar.pages.axes import byte_ticks, ticks
from jaxpar.units import seconds, size

WIDTH, LEFT, RIGHT = 1100, 70, 16
CLASS_COLORS = {
    "optimizer": "#8e7cc3",
    "weights": "#4a86c8",
    "gradients": "#e0a030",
    "saved_activations": "#5aa469",
    "temporaries": "#8fb8c4",
}
"""From the bottom of the picture to the top: classes that live longest are lowest."""
KIND_COLORS = {
    "matmul": "#3b6ea5",
    "attention": "#5aa469",
    "elementwise": "#9aa5b1",
    "copy": "#c9ced6",
    "wait": "#d64545",
}
_COLLECTIVE_COLORS = ("#e0a030", "#8e7cc3", "#4fb3bf", "#c27ba0", "#a98a5b", "#6d8f3c", "#5b6fb5", "#b5651d")
MEMORY_HEIGHT, LANE = 320, 30
_FRAME = {"width": WIDTH, "left": LEFT, "right": WIDTH - RIGHT}

type Picture = dict[str, Any]
"""Values of a macro of `pictures.svg`."""


def memory_picture(timeline: MemoryTimeline, capacity: int) -> Picture:
    """Stacked areas of the classes over the order of the program, with the peak and what the device can hold."""
    top, bottom = 34, MEMORY_HEIGHT - 26
    totals = [sum(timeline.classes[name][i] for name in timeline.classes) for i in range(len(timeline.places))]
    most = max(max(totals), 1)
    highest = 1.08 * (max(most, capacity) if capacity < 2.5 * most else most)
    x = lambda place: round(LEFT + (WIDTH - LEFT - RIGHT) * place / max(timeline.length - 1, 1), 1)
    y = lambda count: round(top + (bottom - top) * (1 - count / highest), 1)
    areas, below = [], [0] * len(totals)
    for name, color in CLASS_COLORS.items():
        above = [low + count for low, count in zip(below, timeline.classes[name], strict=True)]
        edge = [f"{x(p)},{y(v)}" for p, v in zip(timeline.places, above, strict=True)]
        back = [f"{x(p)},{y(v)}" for p, v in zip(timeline.places, below, strict=True)]
        areas.append((color, " ".join(edge + back[::-1])))
        below = above
    return {
        **_FRAME,
        "height": MEMORY_HEIGHT,
        "top": top,
        "bottom": bottom,
        "loops": [(x(a), round(x(b) - x(a), 1), (x(a) + x(b)) / 2, name) for name, a, b in timeline.loops],
        "areas": areas,
        "ticks": [(y(mark), size(mark).replace(".0 ", " ")) for mark in byte_ticks(highest, 6)],
        "capacity": y(capacity) if capacity < highest else None,
        "fits": f"what fits: {size(capacity)}",
        "peak": x(timeline.peak),
        "highest": y(most),
        "peak_text": f"peak {size(most)}",
        "colors": {spaced(name): color for name, color in CLASS_COLORS.items()},
    }


def layer_picture(schedule: LayerSchedule, scale: float, colors: dict[str, str]) -> Picture:
    """Two lanes; `scale` is the time in seconds that fills the width, so that pictures can be compared.
    `colors` are those of transfers."""
    compute, transfers = 24, 24 + LANE + 8
    bottom = transfers + LANE + 4
    x = lambda time: LEFT + (WIDTH - LEFT - RIGHT) * time / scale

    def drawn(span: Span, y: int, color: str) -> tuple[float, int, float, str, str]:
        width = max(x(span.end) - x(span.start), 0.4)
        text = f"{span.label} ({span.kind}), {seconds(span.end - span.start)} {span.source}"
        return round(x(span.start), 2), y, round(width, 2), color, text

    return {
        **_FRAME,
        "height": bottom + 22,
        "bottom": bottom,
        "lane": LANE,
        "lanes": [(compute + LANE / 2 + 4, "compute"), (transfers + LANE / 2 + 4, "transfers")],
        "spans": [
            *(drawn(span, compute, KIND_COLORS[span.kind]) for span in schedule.kernels),
            *(drawn(span, compute, KIND_COLORS["wait"]) for span in schedule.waits),
            *(drawn(span, transfers, colors[span.kind]) for span in schedule.transfers),
        ],
        "ticks": [(x(time), seconds(time)) for time in ticks(0, scale, 10)],
    }


def collective_colors(schedules: list[LayerSchedule]) -> dict[str, str]:
    """A color for each kind of transfer."""
    kinds = sorted({span.kind for schedule in schedules for span in schedule.transfers})
    return {kind: _COLLECTIVE_COLORS[i % len(_COLLECTIVE_COLORS)] for i, kind in enumerate(kinds)}

"""The place of each node in the mesh, over a measured bandwidth between nodes (Pipette, DATE 2024).

Bandwidth between nodes of one cluster differs by a quarter and more from pair to pair. A collective waits for its
slowest edge, and so do the ticks of a pipeline; the order of nodes in the mesh decides which edges are used. Simulated
annealing swaps two nodes at a time, starts from the default order and returns the best order of all, so it is never
worse than the default.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import product
from math import exp
from pathlib import Path
from random import Random
from typing import Annotated

import numpy as np
from jaxtyping import Float

from jaxpar.config import Config, UserError
from jaxpar.config.counting import padded_vocab
from jaxpar.config.kinds import kind_counts
from jaxpar.config.plan import Plan
from jaxpar.config.reading.text_file import LONGEST_WRITTEN, read_text_file
from jaxpar.config.spelling import named
from jaxpar.config.strict_json import json_text
from jaxpar.hardware.cluster import Cluster
from jaxpar.hardware.sources import chosen, derived
from jaxpar.layers.experts.messages import row_bytes_of_ways, rows_sent
from jaxpar.layout import plan_file
from jaxpar.memory.layer_shape import ITEM_BYTES, LayerShape, between_bytes, layer_shapes, matrix_numbers
from jaxpar.pages.units import MEGA, percent, seconds
from jaxpar.pipeline.schedules import SCHEDULES
from jaxpar.planner.machine import named_cluster

SWAPS = 20_000
"""Swaps that are tried."""
WARM: Annotated[float, chosen("of the annealing")] = 0.3
"""Temperature at the start, as a share of the default order's time."""
COLD: Annotated[float, chosen("of the annealing")] = 1e-3
"""The same at the end."""

PASSES: Annotated[int, derived("messages of a layer, below")] = 10
"""Gathers and scatters of the residual stream over tensor ranks in a layer: two of each in the forward, two of each in
the backward, and two gathers that the backward repeats."""

type Edge = tuple[int, int]


def read_bandwidth(path: Path, cluster: Cluster | None = None) -> Float[np.ndarray, "nodes nodes"]:
    """Bytes per second between nodes, row sends to column, from a CSV file of MB/s; lines with # are comments.

    Raises:
        UserError: the file cannot be read, is not square, has something else than numbers above 0, or is of more or
            fewer nodes than `cluster` has hosts.
    """
    try:
        lines = read_text_file(path, LONGEST_WRITTEN).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{named(path)}: the bandwidths cannot be read ({error})") from None
    rows: list[list[float]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            rows.append([float(cell) for cell in next(csv.reader([line]))])
        except ValueError as error:
            raise UserError(f"{named(path)}:{number}: expected MB/s with commas between ({error})") from None
    if not rows or any(len(row) != len(rows) for row in rows):
        widths = ", ".join(map(str, sorted({len(row) for row in rows})))
        raise UserError(
            f"{named(path)}: expected as many columns as rows, got {len(rows)} rows of {widths or 'no'} columns"
        )
    matrix = np.array(rows) * MEGA
    off = ~np.eye(len(rows), dtype=bool)
    if not ((matrix[off] > 0) & np.isfinite(matrix[off])).all():
        raise UserError(f"{named(path)}: expected MB/s above 0 between all nodes")
    if cluster is not None and len(matrix) != cluster.hosts:
        raise UserError(
            f"{named(path)}: bandwidths between {len(matrix)} nodes, and {cluster.name} has {cluster.hosts} hosts; "
            f"expected {cluster.hosts} rows of {cluster.hosts} columns"
        )
    return matrix


@dataclass(frozen=True)
class Traffic:
    """Messages between places of nodes in a step: bytes by edge, of weights and gradients, of the pipeline, of the
    tensor ranks' activations, where a group of them is wider than a node, and of tokens on their way to experts."""

    data: Mapping[Edge, float]
    pipe: Mapping[Edge, float]
    tensor: Mapping[Edge, float] = field(default_factory=dict)
    exchange: Mapping[Edge, float] = field(default_factory=dict)

    @cached_property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The ends of all edges [2, edges], their bytes, and where each kind begins."""
        kinds = [edges for edges in (self.data, self.pipe, self.tensor, self.exchange) if edges]
        ends = np.array([edge for edges in kinds for edge in edges], int).reshape(-1, 2).T
        sizes = np.array([size for edges in kinds for size in edges.values()])
        return ends, sizes, np.cumsum([0, *map(len, kinds)])[:-1]

    def seconds(self, order: Sequence[int] | np.ndarray, bandwidth: np.ndarray) -> float:
        """With node `order[place]` in each place: the slowest edge of each kind, one after the other."""
        ends, sizes, starts = self._arrays
        if not len(sizes):
            return 0.0
        here, there = np.asarray(order)[ends]
        return float(np.maximum.reduceat(sizes / bandwidth[here, there], starts).sum())


def traffic_of(config: Config, plan: Plan, gpus_per_host: int) -> Traffic:
    """Messages between the hosts of a plan: rings over the ranks with the same weights and over tensor ranks, and
    stage to stage, back to the first rank too where ranks have several chunks in a loop.

    Keys and values of context ranks are left out: they go over edges of the first rings, and are few beside gradients.
    """
    axes, model = plan.axes, config.model
    host = np.arange(axes.devices).reshape(tuple(dict(axes).values()))[0] // gpus_per_host
    around = lambda ring: zip(ring, np.roll(ring, -1), strict=True)
    of_weights = np.moveaxis(host, -1, 1).reshape(axes.pipe * axes.tensor, -1)
    stages = []
    for pipe in range(axes.pipe if sends_round(plan) else axes.pipe - 1):
        times = plan.virtual_stages - (pipe == axes.pipe - 1)
        pairs = list(zip(host[pipe].ravel(), host[(pipe + 1) % axes.pipe].ravel(), strict=True))
        stages += times * [*pairs, *((b, a) for a, b in pairs)]
    experts = host.swapaxes(3, 4).reshape(-1, axes.expert * axes.tensor) if plan.experts else ()

    shapes, counts = layer_shapes(config, axes, plan.microbatch_rows), kind_counts(model)
    matrices = sum(counts[kind] * matrix_numbers(shape) for kind, shape in shapes.items())
    weights = matrices / axes.pipe + padded_vocab(model) * model.embed / axes.tensor
    gradient, storage = ITEM_BYTES[plan.dtypes.gradient], ITEM_BYTES[plan.dtypes.storage]
    each = (2 * storage + gradient) * plan.microbatches if plan.zero == 3 else storage + gradient
    sent = between_bytes(next(iter(shapes.values()))) * plan.microbatches
    exchanged = _exchanged(config, plan, shapes) / max(1, axes.expert * axes.tensor - 1)
    return Traffic(
        _edges((pair for ring in of_weights for pair in around(ring)), weights * each),
        _edges(stages, float(sent)),
        _edges(
            (pair for ring in host.reshape(-1, axes.tensor) for pair in around(ring)),
            PASSES * model.layers / axes.pipe * (axes.tensor - 1) * sent,
        ),
        _edges((pair for group in experts for pair in product(group, group)), exchanged),
    )


def groups_of(cluster: Cluster) -> list[int]:
    """The group of each host."""
    return [index for index, group in enumerate(cluster.groups) for _ in range(group.hosts)]


def sends_round(plan: Plan) -> bool:
    """Whether the last rank of a pipeline sends to the first: ranks have several chunks in a loop."""
    return plan.axes.pipe > 1 and plan.virtual_stages > 1 and SCHEDULES[plan.schedule].placement == "loop"


def _edges(pairs: Iterable[tuple[int, int]], size: float) -> dict[Edge, float]:
    """The bytes of each edge between two hosts, of which each pair is `size`."""
    return {edge: times * size for edge, times in Counter((int(a), int(b)) for a, b in pairs if a != b).items()}


def _exchanged(config: Config, plan: Plan, shapes: Mapping[str, LayerShape]) -> float:
    """Bytes of tokens that a rank sends to others that share its experts in a step, forward and backward and both
    ways."""
    axes, counts, total = plan.axes, kind_counts(config.model), 0.0
    for kind, shape in shapes.items():
        if (experts := shape.model.experts) is not None:
            chosen = plan.experts[kind]
            rows = rows_sent(chosen.exchange.name, experts, shape.capacity, axes.expert, axes.tensor)
            row = row_bytes_of_ways(shape.embed, shape.item_bytes, chosen.sent_dtype)
            total += counts[kind] / axes.pipe * rows * shape.part_tokens * row
    return total * plan.microbatches


@dataclass(frozen=True)
class Placed:
    """An order of nodes."""

    order: tuple[int, ...]
    """Node in each place."""
    seconds: float
    """Seconds of messages between nodes in a step if none were hidden."""
    default_seconds: float
    """The same in the order of the nodes' numbers."""


def place(traffic: Traffic, bandwidth: np.ndarray, swaps: int = SWAPS, groups: Sequence[int] | None = None) -> Placed:
    """The best order that annealing meets; never worse than the default order.

    Args:
        traffic: between places.
        bandwidth: bytes per second between nodes.
        swaps: how many swaps are tried.
        groups: of each node, where some may only change places with their like.
    """
    random, nodes = Random(0), len(bandwidth)
    order = np.arange(nodes)
    default = now = best = traffic.seconds(order, bandwidth)
    chosen = tuple(range(nodes))
    if nodes < 2 or default == 0:
        return Placed(chosen, default, default)
    for step in range(swaps):
        a, b = random.sample(range(nodes), 2)
        if groups is not None and groups[a] != groups[b]:
            continue
        order[[a, b]] = order[[b, a]]
        then = traffic.seconds(order, bandwidth)
        heat = default * WARM * (COLD / WARM) ** (step / swaps)
        if then <= now or random.random() < exp((now - then) / heat):
            now = then
            if now < best:
                best, chosen = now, tuple(map(int, order))
        else:
            order[[a, b]] = order[[b, a]]
    return Placed(chosen, best, default)


def print_placement(path: Path, bandwidth_file: Path | None, *, as_json: bool) -> None:
    """`python -m jaxpar.plan place`. Raises `UserError` where plan, cluster and matrix do not go together."""
    planned = plan_file.read(path)
    if planned.cluster is None:
        raise UserError(
            f"{named(path)}: a run's plan, for the devices that it had; expected one of python -m jaxpar.plan, which "
            "names its cluster"
        )
    cluster = named_cluster(planned.cluster)
    source = bandwidth_file or cluster.bandwidth_file
    if source is None:
        raise UserError(
            f"--bandwidth: expected a CSV file, since {planned.cluster} names none (bandwidth: in its YAML)"
        )
    matrix = read_bandwidth(source, cluster)
    placed = place(traffic_of(planned.config, planned.plan, cluster.gpus_per_host), matrix, groups=groups_of(cluster))
    if as_json:
        print(json_text(asdict(placed)))
        return
    gain = placed.default_seconds - placed.seconds
    print(
        f"messages between nodes: {seconds(placed.seconds)} a step, {seconds(placed.default_seconds)} in the default "
        f"order ({percent(gain, placed.default_seconds)} less)"
    )
    print("start processes on the nodes in this order: " + " ".join(map(str, placed.order)))

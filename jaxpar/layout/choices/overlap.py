"""Exchange of the sequence between tensor ranks, for each group of a layer's matmuls: plain, or a ring."""

from __future__ import annotations

from typing import NamedTuple

from jaxpar.config import Config, UserError
from jaxpar.config.bounds import CHUNKS
from jaxpar.config.kinds import kind_counts
from jaxpar.config.plan import AxisSizes, Choice, Plan, TensorOverlap
from jaxpar.config.reading.typed import shown
from jaxpar.config.spelling import did_you_mean, quoted
from jaxpar.cost.hardware_model import hardware_of
from jaxpar.cost.messages import network_of
from jaxpar.cost.operations import device_of
from jaxpar.distributed.devices import Device
from jaxpar.hardware.cluster import Cluster
from jaxpar.layers.declaration.part import Matmuls, Part
from jaxpar.layers.matmul_formats import quantized_matrices
from jaxpar.layout.checks.matmul import MULTIPLE
from jaxpar.layout.choices.collective_matmul import CollectiveMatmul
from jaxpar.layout.choices.tiles import head_tokens
from jaxpar.memory.layer_shape import LayerShape, layer_shapes
from jaxpar.pages.units import plural, seconds
from jaxpar.precision.recipe import TILES


class _Group(NamedTuple):
    """A group of matmuls of the layers of a kind."""

    shape: LayerShape
    layers: int
    part: Part
    group: Matmuls

    @property
    def tiled(self) -> bool:
        """Whether it is computed tile by tile where the feed-forward is."""
        return self.part.name == self.shape.layer.feed_forward.name


def tensor_overlap(
    config: Config, device: Device, cluster: Cluster | None, rows: int, mlp_tiles: int
) -> dict[str, TensorOverlap]:
    """The choice for each group of matmuls; none without tensor parallelism.

    Args:
        config: It is resolved.
        device: One of the run's.
        cluster: With the speeds of GPUs and links, where they are known.
        rows: Of a microbatch on a device.
        mlp_tiles: Tiles in which the feed-forward is computed.

    Raises:
        UserError: An impossible ring is configured, or a number of chunks without one.
    """
    parallel = config.parallel
    _check(config)
    if parallel.tensor == 1:
        return {}
    axes, overlaps = AxisSizes(tensor=parallel.tensor, context=parallel.context), {}
    for name, groups in _groups(config, axes, rows).items():
        tiles = mlp_tiles if groups[0].tiled else 1
        if parallel.overlap.tensor == "plain":
            overlaps[name] = _plain("named by parallel.overlap.tensor")
        elif parallel.overlap.tensor == "auto" and (why := _plain_reason(config, device, cluster)):
            overlaps[name] = _plain(why)
        else:
            overlaps[name] = _timed(config, groups, cluster, tiles)
    return overlaps


def check_overlap(plan: Plan, config: Config) -> None:
    """Raise `UserError` if the groups or chunks of a plan do not fit the model, the mesh or the pipeline."""
    declared = _groups(config, AxisSizes(), 1)
    for name, overlap in plan.tensor_overlap.items():
        if name not in declared:
            raise UserError(
                f"plan.tensor_overlap: {quoted(name)} is not a group of matmuls of a layer{
                    did_you_mean(name, declared)
                }"
            )
        if overlap.algorithm.name not in ("plain", "ring"):
            raise UserError(f"plan.tensor_overlap.{name}: expected plain or ring, got {shown(overlap.algorithm.name)}")
        if overlap.algorithm.name == "ring":
            _refuse_branching(config, f"plan.tensor_overlap.{name}", "plain")
            part = _part(config, plan.mlp_tiles.name if declared[name][0].tiled else 1)
            if part % overlap.chunks:
                raise UserError(
                    f"plan.tensor_overlap.{name}: {overlap.chunks} chunks do not divide the {part} tokens of a "
                    "tensor rank"
                )


def _check(config: Config) -> None:
    parallel, asked, chunks = config.parallel, config.parallel.overlap.tensor, config.parallel.overlap.tensor_chunks
    if parallel.tensor == 1 and asked == "ring":
        raise UserError(
            "parallel.overlap.tensor: ring would not be used, because parallel.tensor is 1; expected auto or plain"
        )
    if chunks is not None and asked != "ring":
        raise UserError(
            f"parallel.overlap.tensor_chunks: {chunks} would not be used, because parallel.overlap.tensor is {asked}; "
            "expected ring with it, or null"
        )
    if asked == "ring":
        _refuse_branching(config, "parallel.overlap.tensor", "auto or plain, or parallel.pipe_ticks: uniform")


def _refuse_branching(config: Config, key: str, instead: str) -> None:
    if _branches(config):
        raise UserError(
            f"{key}: ring sends with permutes, which in the branching ticks of a pipeline (parallel.pipe_ticks) "
            f"corrupt data; expected {instead}"
        )


def _branches(config: Config) -> bool:
    return config.parallel.pipe > 1 and config.parallel.pipe_ticks == "branching"


def _plain_reason(config: Config, device: Device, cluster: Cluster | None) -> str | None:
    """The reason why `auto` does not consider rings."""
    if _branches(config):
        return "a ring permutes, and in the branching ticks of a pipeline (parallel.pipe_ticks) permutes corrupt data"
    if config.precision.matmul in TILES:
        return "a ring has no matmuls with a scale for each tile"
    if device.platform == "cpu":
        return "CPU devices overlap nothing"
    return "the speeds of these devices and their links are unknown" if cluster is None else None


def _timed(config: Config, groups: list[_Group], cluster: Cluster | None, tiles: int) -> TensorOverlap:
    """The ring with the best number of chunks, or under `auto` what is expected to be fastest."""
    parallel, part = config.parallel, _part(config, tiles)
    asked, chunks = parallel.overlap.tensor, parallel.overlap.tensor_chunks
    if chunks is not None and part % chunks:
        raise UserError(
            f"parallel.overlap.tensor_chunks: {chunks} do not divide the {part} tokens that a tensor rank has of "
            f"{'a tile (memory.mlp_tiles)' if tiles > 1 else 'a row (data.sequence_length)'}; expected a divisor, "
            "or null"
        )
    multiple = MULTIPLE if any(_quantized(config, one) for one in groups) else 1
    rows = groups[0].shape.rows
    if chunks is not None and part // chunks * rows % multiple:
        raise UserError(
            f"parallel.overlap.tensor_chunks: {chunks} make chunks of {part // chunks * rows} "
            f"tokens, which are no multiple of {MULTIPLE}, and quantized matmuls (precision.matmul) need one; expected "
            "fewer, or null"
        )
    allowed = [chunks] if chunks else _divisors(part, rows, multiple)
    if not allowed:
        reason = (
            f"{part * rows} tokens of a tensor rank are no multiple of {MULTIPLE}, which quantized matmuls "
            "(precision.matmul) need of a chunk"
        )
        if asked == "ring":
            raise UserError(f"parallel.overlap.tensor: ring: {reason}; expected plain, or auto")
        return _plain(reason)
    if cluster is None:
        return _ring(allowed[0], "named by parallel.overlap.tensor")
    hardware = hardware_of(cluster.gpu)
    on = device_of(cluster.gpu, hardware), network_of(cluster, hardware)
    cases = [(_case(config, one, part * parallel.tensor, tiles), one.layers) for one in groups]
    layers = sum(count for _, count in cases)
    plain = sum(case.plain(*on) * count for case, count in cases) / layers
    rings = {chunks: sum(case.ring(*on, chunks) * count for case, count in cases) / layers for chunks in allowed}
    best = min(rings, key=lambda chunks: rings[chunks])
    reason = f"a layer and microbatch is expected to take {seconds(rings[best])} in a ring, {seconds(plain)} plainly"
    if asked == "ring":
        return _ring(best, f"named by parallel.overlap.tensor; {reason}")
    return _ring(best, reason) if rings[best] < plain else _plain(reason)


def _plain(reason: str) -> TensorOverlap:
    return TensorOverlap(Choice("plain", reason))


def _ring(chunks: int, reason: str) -> TensorOverlap:
    return TensorOverlap(Choice("ring", f"in {plural(chunks, 'chunk')}; {reason}"), chunks)


def _divisors(part: int, rows: int, multiple: int) -> list[int]:
    """Numbers of chunks, of so many rows of `part` tokens, that have a multiple of tokens each."""
    divisors = [chunks for chunks in range(1, CHUNKS + 1) if part % chunks == 0]
    return [chunks for chunks in divisors if part // chunks * rows % multiple == 0]


def _case(config: Config, one: _Group, tokens: int, tiles: int) -> CollectiveMatmul:
    """The collective matmul of a group for all rows, or for one tile, which has tokens of all rows."""
    factor = 0 if one.group.inward else 1  # of two, that next to the exchange
    each = [one.part.factors_of(name) for name in one.group.weights]
    sides = [one.shape.matrix(one.part.weights[factors[factor if len(factors) > 1 else 0]]) for factors in each]
    inside = sum(outputs for _, outputs in sides) if one.group.inward else sides[0][0]
    between = round(one.shape.embed * one.shape.gathered(one.part, one.group))
    tokens *= one.shape.rows if tiles == 1 else 1
    item = one.shape.item_bytes
    operand = 1 if _quantized(config, one) else item
    return CollectiveMatmul(tokens, between, inside, one.group.inward, item, operand, one.shape.tensor)


def _quantized(config: Config, one: _Group) -> bool:
    return one.group.name in quantized_matrices(config, one.shape.model)


def _groups(config: Config, axes: AxisSizes, rows: int) -> dict[str, list[_Group]]:
    """Groups of each kind of layers, by name; routed rows are exchanged apart, always plainly."""
    by_name: dict[str, list[_Group]] = {}
    counts = kind_counts(config.model)
    for kind, shape in layer_shapes(config, axes, rows).items():
        for part in shape.layer.parts:
            for group in () if part.routed else part.groups:
                if group.between:
                    continue
                by_name.setdefault(group.name, []).append(_Group(shape, counts[kind], part, group))
    return by_name


def _part(config: Config, tiles: int) -> int:
    """Tokens of a tensor rank that are cut into chunks: of each row, or of a tile."""
    parallel = config.parallel
    if tiles > 1:
        return -(-head_tokens(config) // parallel.tensor // tiles)
    return config.data.sequence_length // (parallel.context * parallel.tensor)

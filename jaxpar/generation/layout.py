"""A configuration laid out for generation, and the lengths to which rows are padded."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from jax.sharding import Mesh, PartitionSpec

from jaxpar.config import Config, LossConfig, UserError
from jaxpar.config.mappings.quantized import QuantizedConfig
from jaxpar.config.schema.islands import IslandsConfig
from jaxpar.distributed.devices import devices_per_node
from jaxpar.layers.inputs.input import refuse_without_batches
from jaxpar.layout.make_plan import make_plan
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.axes import DATA_AXES
from jaxpar.precision.recipe import unquantized

SMALLEST_BUCKET = 64
"""Rows are padded to this many tokens, or to the next power of two above."""
SMALLEST_PROMPT = 32
"""The same for prompts that no ranks split."""
BY_ROW = PartitionSpec(DATA_AXES)
BY_PART = PartitionSpec(DATA_AXES, ("context", "tensor"))
"""Rows of tokens, as they are between blocks."""


def generation_config(config: Config, rows: int, tokens: int, zero: int) -> Config:
    """`config` laid out for generation: one pipeline stage, weights sharded by ZeRO stage `zero`; each island does the
    same.

    Raises `UserError` for a pipeline, and for an input that reads more than tokens.
    """
    refuse_without_batches(config.model, "generation")
    parallel = config.parallel
    if parallel.pipe != 1:
        raise UserError(
            f"parallel.pipe: {parallel.pipe} stages would each wait for the others at every token; expected 1 for "
            "generation, with the devices on tensor, context or fsdp"
        )
    overlap = replace(
        parallel.overlap, embedding_messages="auto", state_messages="auto", layer_unroll="auto", weight_prefetch="auto",
        tensor="plain", tensor_chunks=None,
    )  # fmt: skip
    parallel = replace(
        parallel, islands=1, zero=zero, microbatches=1, schedule="auto", virtual_stages=None, stage_layers=None,
        context_order="contiguous", ulysses=None, overlap=overlap,
        experts=replace(parallel.experts, slices="auto", own_rows="auto"),
        hpz=None, quantized=QuantizedConfig(),
        context_strategy="auto" if parallel.context_strategy == "usp" else parallel.context_strategy,
    )  # fmt: skip
    memory = replace(
        config.memory, remat="full", offload_fraction=0.0, optimizer_offload="none",
        weights_offload="none", offload_dir=None, mlp_tiles=1, loss_tiles=1,
    )  # fmt: skip
    data = replace(config.data, sequence_length=tokens, batch_size=rows, packed=False, routing=None)
    precision = unquantized(config.precision)
    return replace(
        config, parallel=parallel, precision=precision, memory=memory, data=data, loss=LossConfig(),
        islands=IslandsConfig(),
    )  # fmt: skip


def generation_layout(config: Config, mesh: Mesh, *, rows: int = 0, tokens: int = 0, zero: int = 0) -> StepLayout:
    """The layout of `rows` rows of `tokens` tokens, or of the fewest that the mesh splits.

    The placement of the weights, `placements.storage`, is the same for all of them.
    """
    axes = dict(mesh.shape)
    rows = rows or prod(axes[axis] for axis in (*DATA_AXES, "tensor"))
    tokens, devices = tokens or bucket(0, axes["context"] * axes["tensor"]), list(mesh.devices.flat)
    config = generation_config(config, rows, tokens, zero)
    return StepLayout(config, make_plan(config, devices[0], devices_per_node(devices)))


def bucket(tokens: int, part: int) -> int:
    """The length to which `tokens` tokens are padded: a power of two, rounded up to a multiple of `part`."""
    return -(-max(SMALLEST_BUCKET, power_of_two(tokens)) // part) * part


def prompt_bucket(tokens: int, part: int) -> int:
    """The length to which prompts are padded: a power of two or three quarters of one, at least `SMALLEST_BUCKET`, or
    `SMALLEST_PROMPT` where nothing splits them; a multiple of `part`."""
    smallest = SMALLEST_PROMPT if part == 1 else SMALLEST_BUCKET
    return -(-max(smallest, pool_bucket(tokens)) // part) * part


def pool_bucket(pages: int) -> int:
    """The least power of two, or three quarters of one, that is not below."""
    size = power_of_two(pages)
    return size * 3 // 4 if size >= 4 and pages <= size * 3 // 4 else size


def page_tokens(capacity: int, ranks: int) -> int:
    """Tokens of a page, a multiple of the context ranks: few enough that a row wastes little of its last one, and many
    enough that a token's attention, which reads a page at a time, takes few turns."""
    return -(-min(max(power_of_two(capacity) // 4, 16), 256) // ranks) * ranks


def power_of_two(number: int) -> int:
    """The least power of two that is not below."""
    return 1 << max(0, number - 1).bit_length()

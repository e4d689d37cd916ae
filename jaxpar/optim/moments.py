"""Storage of moments between updates: in float32, in bfloat16, or in 8 bits with a scale for each block.

**Rounding.** A moment moves by a small share of itself, and rounding to the nearest loses what is below half a step of
the dtype: with beta2 0.999 a second moment in bfloat16 never falls at all. So the stored value is one of the two
neighbours, the upper one where the fraction between them exceeds a threshold, and the threshold runs through
`frac((t + 1) / golden ratio)` with the update's number t: spread evenly over [0, 1), so that errors cancel over the
updates. It is stochastic rounding without a generator: a function of the update and the value alone, hence the same
on every layout and for every slice of a weight.

**8 bits** (Dettmers et al. 2021, arXiv:2110.02861): a block of neighbours shares a float32 scale, its largest
magnitude, and an element is an index into a table of magnitudes that has more values for large ones and reaches down to
1e-6 of the scale. mu has a sign and 127 magnitudes. nu is stored as its square root, in 255 magnitudes: that is what an
update divides by, and it spans half the decades. A positive one never becomes zero, which would make the division
explode.

The layers' matrices are stored in 8 bits. Embedding and head, whose rows differ as much as the frequencies of words
(the paper keeps them in 32 bits), are stored in bfloat16; norms and biases in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, UInt

from jaxpar.mesh.parameters import ParamSpec
from jaxpar.mesh.placements import SHARD_ORDER

LONGEST_BLOCK, SHORTEST_BLOCK = 128, 16
"""Elements that share a scale: at 128 it adds 0.03 bytes an element. Below 16 bfloat16 is hardly larger."""
TENSOR_RANKS = 8
"""Blocks fit into the parts of this many tensor ranks, the number of GPUs of a node."""
DECADES = 7
"""Decades of the table of magnitudes: from 1 down to 1e-7."""
GOLDEN = 2654435769
"""2^32 over the golden ratio."""


class Blocked[Part](NamedTuple):
    """An array in 8 bits, or the partition of its parts."""

    codes: Part
    """Shaped like the weight: int8 of a moment with a sign, else uint8."""
    scales: Part
    """The scales in float32, one for each block along the dim that is cut into blocks."""


@dataclass(frozen=True)
class Blocks:
    """Blocks of a weight: a function of its declaration only, so that a checkpoint fits every mesh."""

    dim: int
    size: int


type Form = str | Blocks
"""The stored form of a moment: the name of a dtype, or 8 bits in blocks."""

type Stored = Float[Array, "*shard"] | Blocked[Array]
"""A moment in its stored form."""


def form_of(moments: str, spec: ParamSpec) -> Form:
    """The stored form of a weight's moments under `precision.moments`."""
    if moments != "int8":
        return moments
    if not spec.matrix:
        return "bfloat16" if spec.decay else "float32"
    blocks = blocks_of(spec)
    return blocks if blocks.size >= SHORTEST_BLOCK else "bfloat16"


def blocks_of(spec: ParamSpec) -> Blocks:
    """Blocks run along the dim that fsdp would split last, so that it splits none as long as another dim divides.

    The dims that tensor parallelism splits are cut into blocks that fit `TENSOR_RANKS` parts.
    """
    name = max((axis for axis in spec.axes if axis in SHARD_ORDER), key=SHARD_ORDER.index)
    dim = spec.axes.index(name)
    parts = 1 if name in ("head_dim", "latent") else TENSOR_RANKS
    block = spec.shape[dim] // parts if spec.shape[dim] % parts == 0 else spec.shape[dim]
    return Blocks(dim, gcd(block, LONGEST_BLOCK))


def zeros(form: Form, like: Float[Array, "*shard"], *, signed: bool) -> Stored:
    """A stored moment of zeros for a weight, whole or one device's part."""
    if not isinstance(form, Blocks):
        return jnp.zeros_like(like, form)
    shape = list(like.shape)
    shape[form.dim] //= form.size
    return Blocked(jnp.zeros_like(like, jnp.int8 if signed else jnp.uint8), jnp.zeros(shape, jnp.float32))


def decode(form: Form, stored: Stored) -> Float[Array, "*shard"]:
    """The moment in float32."""
    if not isinstance(stored, Blocked):
        return stored.astype(jnp.float32)
    assert isinstance(form, Blocks), f"8 bits in {form}"
    signed = stored.codes.dtype == jnp.int8
    indices = jnp.abs(stored.codes.astype(jnp.int32))
    magnitudes = _look_up(magnitude_table(signed), indices) * _spread(stored.scales, form)
    return jnp.where(stored.codes < 0, -magnitudes, magnitudes) if signed else jnp.square(magnitudes)


def encode(form: Form, moment: Float[Array, "*shard"], step: Int[Array, ""], *, signed: bool) -> Stored:
    """A float32 moment as it is stored after update `step` (from 0); `signed` for mu."""
    if form == "float32":
        return moment
    if form == "bfloat16":
        return _to_bfloat16(moment, step)
    assert isinstance(form, Blocks), f"moments in {form}"
    magnitudes = jnp.abs(moment) if signed else jnp.sqrt(moment)
    scales = _largest(magnitudes, form)
    relative = magnitudes / _spread(jnp.where(scales > 0, scales, 1.0), form)
    table = magnitude_table(signed)
    lower = floor_index(table, relative)
    upper = jnp.minimum(lower + 1, len(table) - 1)
    below, above = _look_up(table, lower), _look_up(table, upper)
    index = jnp.where(relative - below > _threshold(step) * (above - below), upper, lower)
    if signed:
        return Blocked(jnp.where(moment < 0, -index, index).astype(jnp.int8), scales)
    return Blocked(jnp.where(moment > 0, jnp.maximum(index, 1), 0).astype(jnp.uint8), scales)


def magnitude_table(signed: bool) -> np.ndarray:
    """The magnitudes that codes stand for, ascending: 0 first, 1 last; 128 beside a sign, else 256.

    The paper's dynamic tree: decade d (from the lowest) has 2^d values beside a sign and 2^(d+1) without, in the
    middles of equal parts of [0.1, 1] times its power of ten. The paper has 1 beside a sign and no -1; here both, in
    place of the least.
    """
    values = []
    for decade in range(DECADES):
        edges = np.linspace(0.1, 1, 2 ** (decade + (not signed)) + 1)
        values.append((edges[:-1] + edges[1:]) / 2 * 10.0 ** (decade + 1 - DECADES))
    middles = np.concatenate(values)[int(signed) :]
    return np.concatenate([[0.0], middles, [1.0]]).astype(np.float32)


def _threshold_bits(step: Int[Array, ""]) -> UInt[Array, ""]:
    return (step.astype(jnp.uint32) + 1) * jnp.uint32(GOLDEN)


def _threshold(step: Int[Array, ""]) -> Float[Array, ""]:
    """The fraction, in [0, 1), above which the upper neighbour is stored."""
    return (_threshold_bits(step) >> 8).astype(jnp.float32) * 2.0**-24


def _to_bfloat16(value: Float[Array, "*shard"], step: Int[Array, ""]) -> Float[Array, "*shard"]:
    """The lower 16 bits of a float32 are its fraction of a step of bfloat16: what is added carries into the upper."""
    added = jnp.uint32(0xFFFF) - (_threshold_bits(step) >> 16)
    bits = lax.bitcast_convert_type(value, jnp.uint32) + added
    return lax.bitcast_convert_type((bits >> 16).astype(jnp.uint16), jnp.bfloat16)


def _look_up(table: np.ndarray, indices: Int[Array, "*shard"]) -> Float[Array, "*shard"]:
    return jnp.asarray(table).at[indices].get(mode="promise_in_bounds")


def floor_index(table: np.ndarray, values: Float[Array, "*shard"]) -> Int[Array, "*shard"]:
    """Index of the last magnitude of `table` that is no larger than each of `values`, from 0 to 1.

    Computed by arithmetic and corrected by the neighbours: a binary search, each look-up dependent on the one before,
    would not become one kernel.
    """
    widening = int(len(table) == 256)
    decade, power = jnp.zeros(values.shape, jnp.int32), 10.0 ** (DECADES - 1)
    for exponent in range(1 - DECADES, 0):
        above = values >= 10.0**exponent
        decade, power = decade + above, jnp.where(above, 10.0 ** -(exponent + 1), power)
    count = jnp.left_shift(1, decade + widening)
    middle = jnp.floor((values * power - 0.1) / 0.9 * count - 0.5).astype(jnp.int32)
    first = count - (1 << widening) + widening
    index = jnp.clip(first + middle, 0, len(table) - 1)
    index -= _look_up(table, index) > values
    return index + (_look_up(table, jnp.minimum(index + 1, len(table) - 1)) <= values) * (index < len(table) - 1)


def _largest(values: Float[Array, "*shard"], blocks: Blocks) -> Float[Array, "*blocks"]:
    shape, dim = values.shape, blocks.dim
    return values.reshape(*shape[:dim], -1, blocks.size, *shape[dim + 1 :]).max(axis=dim + 1)


def _spread(scales: Float[Array, "*blocks"], blocks: Blocks) -> Float[Array, "*shard"]:
    return jnp.repeat(scales, blocks.size, axis=blocks.dim)

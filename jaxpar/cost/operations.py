"""Seconds of operations on one GPU: matmuls, attention kernels, and memory-bound work."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated

from jaxpar.cost.hardware_model import HardwareModel
from jaxpar.cost.tables import Table
from jaxpar.hardware.catalogue import GPU
from jaxpar.hardware.sources import assumed, cited, derived

TILES: Annotated[
    tuple[tuple[int, int, float], ...],
    assumed("tiles of CUTLASS; speeds by its profiler, rounded, of no table"),
] = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.92), (128, 64, 0.75), (64, 64, 0.6))
"""Output tiles that a matmul library chooses from, and the speed of each relative to the largest, whose operands are
read least often. Rows, columns, share."""

ALIGNED: Annotated[
    tuple[tuple[int, float], ...],
    assumed(
        "limits at 8 and 64 numbers of 16 bits: NVIDIA's guide to matrix multiplication, Tensor Core Requirements; the "
        "order: arXiv:2401.14489; the speeds are assumed"
    ),
] = ((64, 1.0), (32, 0.99), (16, 0.97), (8, 0.93), (4, 0.62), (2, 0.45), (1, 0.30))
"""Speed of a matmul by the power of two that divides its inner and output dims."""

HEAD_STEPS: Annotated[tuple[tuple[int, int], ...], cited("FlashAttention-2, flash_api.cpp; cuDNN's tiles")] = (
    (128, 32),
    (256, 64),
)
"""Widths that attention kernels are made for: up to 128 in steps of 32, up to 256 in steps of 64; another width is
padded to the next."""

ATTENTION_TILE: Annotated[int, derived("tiles of our kernels, and of FlashAttention-2 and 3")] = 128
"""Rows and columns of the tiles of scores in an attention kernel: those on the diagonal are computed whole."""

SCORES_BLOCK: Annotated[int, derived("attention.query_block, kv_block")] = 512
"""Rows and columns of the blocks of scores in plain JAX."""

type Attention = str
"""The name of an implementation of `pallas_kernels.attention`, by which attention is timed.

`mosaic`: written for Hopper; on Ampere as fast as FlashAttention-2. `cudnn`: the same, with values as wide as keys
(zeros are added to narrower ones, of latent attention). `triton`: what FlashAttention-2 reaches on Hopper
(docs/kernels.md). `mosaic_deterministic` and `triton` have a backward of two launches, seven matmuls in place of
five. `xla`: plain JAX, whose float32 scores pass through memory block by block."""
USUAL_ATTENTION: Attention = "mosaic"
"""The kernels that are timed where none are named."""
FOR_HOPPER = ("mosaic", "mosaic_deterministic", "cudnn")
"""Implementations that are written for Hopper."""
SPLIT_BACKWARD = ("mosaic_deterministic", "triton")
"""Implementations whose backward is two launches."""
CALIBRATED = ("mosaic", "cudnn")
"""Implementations that measured attention stands for: those that `calibrate` takes."""

ACCUMULATOR_BYTES: Annotated[int, derived("float32")] = 4
"""A product whose output takes more bytes a number is added to an accumulator, which is read and written."""

ATTENTION_BACKWARD: Annotated[
    float, cited("NVIDIA's table for cuDNN 9, H200, 8k: 541 against 644 TFLOP/s, exponentials included")
] = 0.8
"""Speed of the five matmuls of attention's backward relative to the two of its forward: it holds two accumulators more
and adds to memory."""

EXPOSED_EXPONENTIALS: Annotated[
    float,
    assumed("FlashAttention-3, arXiv:2407.08608, hides some behind matmuls; half is assumed"),
] = 0.5
"""Share of its exponentials that a kernel for Hopper does not hide behind matmuls."""


@dataclass(frozen=True)
class Device:
    """A GPU and what it reaches of its datasheet."""

    peak: float
    """FLOP/s of dense matmuls in 16 bits."""
    float8_peak: float
    """The same in float8; 0 where the GPU has none."""
    float32_peak: float
    """The same in float32 that is not rounded to TF32."""
    bandwidth: float
    """Bytes per second of its memory."""
    model: HardwareModel

    def bytes_seconds(self, moved: float) -> float:
        """Seconds that memory-bound kernels take for so many bytes."""
        return moved / (self.bandwidth * self.model.memory_share)

    def matmul_rate(self, item: int = 2) -> float:
        """FLOP/s of large matmuls of numbers of 1, 2 or 4 bytes; float32 is not rounded to TF32."""
        if item == 1:
            return self.float8_peak * self.model.float8_share
        return (self.float32_peak if item == 4 else self.peak) * self.model.matmul_share

    def matmul(self, m: int, n: int, k: int, batch: int = 1, out_bytes: float = 2, item: int = 2) -> float:
        """Seconds of `batch` products [m, k] x [k, n], of numbers of `item` bytes; of one product as measured, near
        shapes that were."""
        of_shape = lambda m, n, k: self._matmul_by_share(m, n, k, batch, out_bytes, item)
        if batch > 1:
            return of_shape(m, n, k)
        accumulates = out_bytes > ACCUMULATOR_BYTES
        return self.model.measured.seconds(Table("matmul", (item, accumulates)), (m, n, k), of_shape)

    def _matmul_by_share(self, m: int, n: int, k: int, batch: int, out_bytes: float, item: int) -> float:
        """The same at the share of the peak.

        Tiles of the output go over the multiprocessors in waves, the last of which may be almost empty; each tile
        takes k steps and `matmul_ramp` more; the time is at least that of reading the operands and writing the output.
        """
        ramp, units = self.model.matmul_ramp, self.model.multiprocessors
        speed = self.matmul_rate(item) * aligned(n, item) * aligned(k, item)
        compute = waves(m, n, batch, units) * 2.0 * (k + ramp) * units / speed
        moved = batch * ((m * k + k * n) * item + m * n * out_bytes)
        return max(compute, moved / (self.bandwidth * self.model.memory_share))

    def flash(
        self, rows: int, heads: int, queries: int, keys: float, width: int, kernels: Attention, item: int = 2,
        value_width: int | None = None,
    ) -> tuple[float, float]:  # fmt: skip
        """Seconds of an attention kernel forward and backward.

        Args:
            rows: sequences.
            heads: query heads on this device.
            queries: of each sequence, on this device.
            keys: that a query sees, on average.
            width: of a query and a key.
            kernels: the implementation; those for Hopper hide half of their exponentials behind matmuls.
            item: bytes of a number; matmuls of float32 run at the peak of float32.
            value_width: of a value; that of a key where none is given.

        Rows of measured tables are seconds of a query and a head, by the keys that it sees.
        """
        peak, value_width = self.float32_peak if item == 4 else self.peak, value_width or width
        of_key, of_value = padded_width(width), padded_width(width if kernels == "cudnn" else value_width)
        split = kernels in SPLIT_BACKWARD
        forward_columns = of_key + of_value
        backward_columns = (4 * of_key + 3 * of_value) if split else (3 * of_key + 2 * of_value)

        def of_query(keys: float, backward: bool) -> float:
            pairs = keys + ATTENTION_TILE / 2
            flops = 2.0 * (backward_columns if backward else forward_columns) * pairs
            exponentials = pairs * (2 if backward and split else 1)
            return self.fused_attention(flops, exponentials, peak, kernels, backward)

        def seconds(backward: bool) -> float:
            of_shape = partial(of_query, backward=backward)
            if kernels not in CALIBRATED:
                return of_shape(keys)
            table = Table("attention backward" if backward else "attention forward", ((width + value_width) // 2, item))
            return self.model.measured.seconds(table, (keys,), of_shape)

        each = float(rows) * heads * queries
        return each * seconds(False), each * seconds(True)

    def fused_attention(self, flops: float, pairs: float, peak: float, kernels: str, backward: bool) -> float:
        """Seconds of a kernel with so many FLOPs at `peak` FLOP/s, and an exponential for each pair."""
        model = self.model
        native = kernels in FOR_HOPPER and self.float8_peak > 0
        rate = peak * (model.attention_native_share if native else model.attention_share)
        exponentials = pairs / model.exponentials * (EXPOSED_EXPONENTIALS if native else 1.0)
        return flops / (rate * ATTENTION_BACKWARD if backward else rate) + exponentials

    def blocks(
        self, rows: int, heads: int, queries: int, keys: float, width: int, item: int = 2, shared: int = 1
    ) -> tuple[float, float]:
        """Seconds of attention in plain JAX, forward and backward: blocks that the mask empties are skipped.

        `keys` are those of the blocks that a query meets; `shared` query heads of a key head are rows of one matmul.
        Every matmul reads its operands from memory and writes float32, and what is between them are passes over a
        block's float32 scores (`pallas_kernels/attention/reference.py`). Bytes per pair, those of the matmuls apart.
        Forward: the greatest score is read (4), the exponential reads and writes (4 and an item), its sum reads an
        item; sums of values are read twice and written (12 of a value's number). Backward: scores and the gradient of
        the probabilities are read (8), both are written as items; three float32 sums likewise. Not measured.
        """
        batch, block, pairs = rows * heads // shared, min(SCORES_BLOCK, queries), float(rows) * heads * queries * keys
        turns, tall = pairs / (float(batch) * shared * block * block), shared * block
        product, back, of_keys = (
            turns * self.matmul(m, n, k, batch, 4, item)
            for m, n, k in ((tall, block, width), (tall, width, block), (block, width, tall))
        )
        sums = 12.0 * width / block
        forward = product + back + self.bytes_seconds(pairs * (8.0 + 2 * item + sums))
        backward = 2 * product + back + 2 * of_keys + self.bytes_seconds(pairs * (8.0 + 2 * item + 3 * sums))
        return forward, backward


@lru_cache(maxsize=50_000)
def waves(m: int, n: int, batch: int, units: int) -> float:
    """Results of `batch` products [m, n] that each of so many multiprocessors computes, one by one, at the speed of the
    largest tile: those of the tile that is fastest, over all waves."""
    tiles = lambda rows, columns: -(-m // rows) * -(-n // columns) * batch
    return min(-(-tiles(rows, columns) // units) * rows * columns / speed for rows, columns, speed in TILES)


@lru_cache(maxsize=50_000)
def aligned(size: int, item: int = 2) -> float:
    """Speed of a matmul with such a dim, of numbers of `item` bytes, relative to one of whole tiles."""
    numbers = max(1, size * item // 2)
    return next(speed for multiple, speed in ALIGNED if numbers % multiple == 0)


def padded_width(width: int) -> int:
    """Width of a head as an attention kernel computes it."""
    step = next((step for most, step in HEAD_STEPS if width <= most), 1)
    return -(-width // step) * step


def device_of(gpu: GPU, model: HardwareModel) -> Device:
    """A GPU of the catalogue that reaches the shares of `model`."""
    peaks = gpu.training_peak, gpu.peaks.get("float8", 0.0), gpu.peaks["float32"]
    return Device(*peaks, gpu.hbm_bandwidth, model)

"""The forward's blocks with two products in flight: the scores of a block beside the values of the block before.

FlashAttention-3's pipeline within a warpgroup (arXiv:2407.08608, section 3.2). The sum of values stays in the registers
of its accumulator from the first block of a tile to the last. Beside it the consumers alternate, as in section 3.1:
each issues both products of a step and hands over to the next, so that the tensor cores have the others' products while
this one exponentiates.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.attention.mosaic.matmuls import InFlight, product
from pallas_kernels.attention.mosaic.registers import across
from pallas_kernels.attention.mosaic.schedule import zero
from pallas_kernels.pallas import mosaic_gpu as plgpu
from pallas_kernels.pallas import pl


def first_turn(turn: Any, warpgroup: Any) -> None:
    """The first consumer begins: the last one hands over before anything else."""
    pl.when(warpgroup == turn.shape[0] - 1)(lambda: hand_over(turn, warpgroup))


def last_turn(turn: Any, warpgroup: Any) -> None:
    """The first consumer takes what the last one handed over at the end, so that no barrier is left half used."""
    pl.when(warpgroup == 0)(lambda: await_turn(turn, warpgroup))


def await_turn(turn: Any, warpgroup: Any) -> None:
    """Wait until the consumer before hands over."""
    plgpu.barrier_wait(turn.at[warpgroup])


def hand_over(turn: Any, warpgroup: Any) -> None:
    """Give the turn to the next consumer."""
    plgpu.barrier_arrive(turn.at[lax.rem(warpgroup + 1, jnp.int32(turn.shape[0]))])


def overlapped_blocks(kernel: Any, memory: Any, at: Any, full: Any, state: tuple) -> tuple:
    """Output before it is divided, peak and total of a tile's blocks; `state` is that of no blocks."""
    some = jnp.minimum(at.visited, 1)
    return lax.fori_loop(0, some, lambda _, state: _blocks(kernel, memory, at, full, state), state)


def _blocks(kernel: Any, memory: Any, at: Any, full: Any, state: tuple) -> tuple:
    """Process a tile with at least one block. The first is always masked, which changes nothing if it is full."""

    def run(running: Any) -> tuple[jax.Array, Any]:
        out, peak, total = state
        slot = memory.keys.slot(at.done)
        (q, _), (k, tokens) = memory.queries.at(at.warpgroup + zero(at.done)), memory.keys.at(slot)
        memory.keys.wait(slot)
        raw = product(q, k.transpose((1, 0)))
        p, _, peak = kernel.soften(kernel.seen(raw, at.limits, tokens, True), peak, True)
        kernel.matmuls.order_reads()
        memory.keys.release(slot)
        carry = (out if kernel.matmuls.needs_scratch else None, peak, total + p.sum(axis=1), p.astype(kernel.dtype))
        step = partial(_step, kernel, memory, at, running)
        carry = lax.fori_loop(1, full, lambda index, carry: step(index, carry, masked=False), carry)
        first = jnp.maximum(full, 1)
        carry = lax.fori_loop(first, at.visited, lambda index, carry: step(index, carry, masked=True), carry)
        out, peak, total, p = carry
        last = memory.values.slot(at.done + at.visited - 1)
        memory.values.wait(last)
        out = kernel.matmuls.finish(running, out, p, memory.values.at(last)[0], _scratch(memory, at))
        memory.values.release(last)
        return out, (peak, total)

    out, (peak, total) = kernel.matmuls.with_sum(run, state[0])
    return out, peak, total


def _step(kernel: Any, memory: Any, at: Any, running: Any, index: Any, carry: tuple, *, masked: bool) -> tuple:
    """The scores of block `index`, while the block before is multiplied with its values."""
    out, peak, total, p = carry
    slot, before = memory.keys.slot(at.done + index), memory.values.slot(at.done + index - 1)
    (q, _), (k, tokens) = memory.queries.at(at.warpgroup + zero(at.done + index)), memory.keys.at(slot)
    (v,) = memory.values.at(before)
    memory.keys.wait(slot)
    memory.values.wait(before)
    await_turn(memory.turn, at.warpgroup)
    apart = masked and kernel.tiles.overlapped == "whole"

    def use(raw: jax.Array) -> tuple[tuple, jax.Array]:
        s = kernel.seen(raw, at.limits, tokens, masked)
        kernel.matmuls.order_reads()
        memory.keys.release(slot)
        new, decay, new_peak = kernel.soften(s, peak, masked)
        new_total = total * decay + new.sum(axis=1)
        if not apart:
            kernel.matmuls.settle(new_total)
        return (new_peak, new_total, new), across(decay, (raw.shape[0], v.shape[1]))

    issued, done = lambda: hand_over(memory.turn, at.warpgroup), lambda: memory.values.release(before)
    pair = InFlight((q, k.transpose((1, 0))), (p, v), use, issued, done, apart)
    out, (peak, total, p) = kernel.matmuls.beside(running, out, pair, _scratch(memory, at))
    return out, peak, total, p.astype(kernel.dtype)


def _scratch(memory: Any, at: Any) -> Any:
    """Scratch memory of a simulated product."""
    return None if memory.scratch is None else memory.scratch.at[at.warpgroup]

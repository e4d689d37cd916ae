"""Tensor-core products of a warpgroup, as the device does them and as the simulator of Mosaic GPU can do them.

The simulator knows neither an operand in registers nor an accumulator that starts from a value. `Simulated` does the
same with a trip through shared memory and an addition; everything around it is the same kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, reduce
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm, vector

from pallas_kernels.pallas import mosaic_gpu as plgpu
from pallas_kernels.pallas import pl


def product(a: Any, b: Any, meanwhile: Callable[[], None] | None = None) -> jax.Array:
    """`a @ b` of two references to shared memory, in float32; `meanwhile` runs while the tensor cores do."""

    def compute(accumulator: Any) -> jax.Array:
        plgpu.wgmma(accumulator, a, b)
        if meanwhile is not None:
            meanwhile()
        return accumulator[...]

    return pl.run_scoped(compute, _accumulator((a, b)))


def products[Made](
    first: tuple[Any, Any],
    second: tuple[Any, Any],
    between: Callable[[], None],
    use: Callable[[jax.Array], Made],
    behind: int = 0,
) -> tuple[Made, jax.Array]:
    """The result of `use` for the first of two products, computed while the second runs, and the second product.

    `between` runs after the first was issued. `use` issues `behind` more, which are under way at the end.
    """

    def compute(one: Any, two: Any) -> tuple[Made, jax.Array]:
        plgpu.wgmma(one, *first)
        between()
        plgpu.wgmma(two, *second)
        made = use(_after_wait(plgpu.wgmma_accumulator_load(one, wait_n=1)))
        return made, _after_wait(plgpu.wgmma_accumulator_load(two, wait_n=behind))

    return pl.run_scoped(compute, _accumulator(first), _accumulator(second))


def product_over_halves(pairs: tuple[tuple[Any, Any], ...]) -> jax.Array:
    """The sum of `a @ b` over pairs of references to shared memory."""

    def compute(accumulator: Any) -> jax.Array:
        for a, b in pairs:
            plgpu.wgmma(accumulator, a, b)
        return accumulator[...]

    return pl.run_scoped(compute, _accumulator(pairs[0]))


def _accumulator(pair: tuple[Any, Any]) -> Any:
    """The type of an accumulator for `a @ b`, in float32."""
    return plgpu.WGMMAAccumulatorRef((pair[0].shape[0], pair[1].shape[1]), jnp.float32)


def _start(total: jax.Array) -> Any:
    """An accumulator that starts from a value; `run_state` gives the value that it ends with."""
    return plgpu.WGMMAAccumulatorRef.init(total)


class Running(NamedTuple):
    """A sum over products that stays in the registers of an accumulator."""

    ref: Any


class Add(Protocol):
    """Issues a product that is added to the sum of a name: of a value and a reference."""

    def __call__(self, name: str, a: jax.Array, b: Any) -> None: ...


class InFlight[Made](NamedTuple):
    """Two products that the tensor cores have at the same time, and what happens meanwhile."""

    first: tuple[Any, Any]
    """Operands of the first product, two references; its result is used while the second runs."""
    second: tuple[jax.Array, Any]
    """Operands of the second product, a value and a reference; it is added to a sum."""
    use: Callable[[jax.Array], tuple[Made, jax.Array]]
    """Takes the first, and gives something and the factor that the sum is then multiplied with."""
    issued: Callable[[], None]
    """Runs when both are under way."""
    done: Callable[[], None]
    """Runs after both."""
    apart: bool = False
    """The first is used when both are over, so that the operand of the second takes no registers beside it."""


def _after_wait[Values](values: Values) -> Values:
    """Values that the compiler does not use before the preceding wait, on which nothing else makes them depend.

    That is so of what was multiplied, and of what takes the registers of an operand: ptxas serializes all products of a
    kernel in which the next operand is written while the last one is read.
    """
    return lax.optimization_barrier(values)


def _mark_negative(_: Any, values: Any) -> None:
    """A performance event, which does nothing, in a thread of which one of these float32 values has its sign bit."""
    word = ir.IntegerType.get_signless(32)
    vectors = (vector.bitcast(ir.VectorType.get(one.type.shape, word), one) for one in values.registers.flat)
    words = [vector.extract(one, [], [index]) for one in vectors for index in range(one.type.shape[0])]
    asm = "{ .reg .pred any; setp.lt.s32 any, $0, 0; @any pmevent 0; }"
    llvm.inline_asm(ir.Type.parse("!llvm.void"), [reduce(arith.ori, words)], asm, "r", has_side_effects=True)


@cache
def _marker(dims: int) -> Callable[[jax.Array], None]:
    """`_mark_negative` of the values of a block (2 dims) or of its rows (1)."""
    block = plgpu.Layout.WGMMA
    return plgpu.inline_mgpu(arg_types=(block if dims == 2 else block.reduce(1),))(_mark_negative)


class OnDevice:
    """Accumulates in place, with the first operand in registers."""

    needs_scratch = False

    @staticmethod
    def settle(values: jax.Array) -> None:
        """Values of a block or of its rows are computed before the wait that follows; few of them are negative.

        ptxas keeps a wait where it is among instructions with effects alone: it moves exponentials behind the wait for
        the second product, beside which they are meant to run. So an instruction with an effect depends on them.
        """
        _marker(values.ndim)(values)

    @staticmethod
    def order_reads() -> None:
        """Nothing: what a consumer has read is in registers when it gives a block back, and a fence spills 4 bytes."""

    @staticmethod
    def add(
        total: jax.Array, a: jax.Array, b: Any, scratch: Any, meanwhile: Callable[[], None] | None = None
    ) -> jax.Array:
        """`total + a @ b`, where a is a value and b a reference; `meanwhile` runs while the tensor cores do."""
        del scratch

        def compute(accumulator: Any) -> None:
            plgpu.wgmma(accumulator, a, b)
            if meanwhile is not None:
                meanwhile()

        return pl.run_state(compute)(_start(total))

    @staticmethod
    def add_all(totals: dict[str, jax.Array], body: Callable[[Add], None], scratch: Any) -> dict[str, jax.Array]:
        """`totals` with the products that `body` issues, which are over at its end."""
        del scratch

        def compute(sums: dict[str, Any]) -> None:
            body(lambda name, a, b: plgpu.wgmma(sums[name], a, b))

        return pl.run_state(compute)({name: _start(total) for name, total in totals.items()})

    @staticmethod
    def with_sum(body: Callable[[Running], tuple[jax.Array, Any]], total: jax.Array) -> tuple[jax.Array, Any]:
        """`body` of a sum that begins with zeros, as `total` is; its result is the sum and something else."""
        return pl.run_scoped(
            lambda ref: body(Running(ref)), plgpu.WGMMAAccumulatorRef((total.shape[0], total.shape[1]), jnp.float32)
        )

    @staticmethod
    def beside[Made](running: Running, total: Any, pair: InFlight[Made], scratch: Any) -> tuple[Any, Made]:
        """The sum after both products of `pair`, and what its `use` made of the first."""
        from jax._src.pallas.mosaic_gpu.primitives import wgmma_accumulator_store  # in no public module of jax 0.11

        del total, scratch

        def compute(one: Any) -> Made:
            plgpu.wgmma(one, *pair.first)
            plgpu.wgmma(running.ref, *pair.second)
            pair.issued()
            if pair.apart:
                raw, product = _after_wait(
                    (plgpu.wgmma_accumulator_load(one, wait_n=0), plgpu.wgmma_accumulator_load(running.ref, wait_n=0))
                )
                pair.done()
                made, factor = pair.use(raw)
            else:
                made, factor = pair.use(_after_wait(plgpu.wgmma_accumulator_load(one, wait_n=1)))
                product, made = _after_wait((plgpu.wgmma_accumulator_load(running.ref, wait_n=0), made))
                pair.done()
            wgmma_accumulator_store(running.ref, product * factor)
            return made

        return None, pl.run_scoped(compute, _accumulator(pair.first))

    @staticmethod
    def finish(running: Running, total: Any, a: jax.Array, b: Any, scratch: Any) -> jax.Array:
        """The sum with `a @ b`."""
        del total, scratch
        plgpu.wgmma(running.ref, a, b)
        return plgpu.wgmma_accumulator_load(running.ref, wait_n=0)

    @staticmethod
    def add_shared(total: jax.Array, a: Any, b: Any) -> jax.Array:
        """`total + a @ b` of two references."""

        def compute(accumulator: Any) -> None:
            plgpu.wgmma(accumulator, a, b)

        return pl.run_state(compute)(_start(total))

    @staticmethod
    def add_to_global(target: Any, value: jax.Array, stage: Any) -> None:
        """Add `value` to global memory through shared memory, by TMA and without waiting: others may do the same."""
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        stage[...] = value
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(stage, target, reduction_op="add")


class Simulated:
    """The same products for the simulator, through `scratch`, a reference of a's shape."""

    needs_scratch = True

    @staticmethod
    def settle(values: jax.Array) -> None:
        """Nothing: it keeps the order of the program."""

    @staticmethod
    def order_reads() -> None:
        """Order this consumer's reads of shared memory before TMA's next writes there."""
        plgpu.commit_smem()

    @staticmethod
    def add(
        total: jax.Array, a: jax.Array, b: Any, scratch: Any, meanwhile: Callable[[], None] | None = None
    ) -> jax.Array:
        scratch[...] = a
        plgpu.commit_smem()
        return total + product(scratch, b, meanwhile)

    @staticmethod
    def add_all(totals: dict[str, jax.Array], body: Callable[[Add], None], scratch: Any) -> dict[str, jax.Array]:
        """`scratch` has an operand of each product."""
        operands = dict(zip(totals, scratch, strict=True))

        def compute(sums: dict[str, Any]) -> dict[str, jax.Array]:
            def add(name: str, a: jax.Array, b: Any) -> None:
                operands[name][...] = a
                plgpu.commit_smem()
                plgpu.wgmma(sums[name], operands[name], b)

            body(add)
            return {name: totals[name] + one[...] for name, one in sums.items()}

        types = {name: plgpu.WGMMAAccumulatorRef((total.shape[0], total.shape[1])) for name, total in totals.items()}
        return pl.run_scoped(compute, types)

    @staticmethod
    def with_sum(body: Callable[[Running], tuple[jax.Array, Any]], total: jax.Array) -> tuple[jax.Array, Any]:
        del total
        return body(Running(None))

    @staticmethod
    def beside[Made](running: Running, total: Any, pair: InFlight[Made], scratch: Any) -> tuple[Any, Made]:
        del running
        scratch[...] = pair.second[0]
        plgpu.commit_smem()

        def compute(one: Any, two: Any) -> tuple[jax.Array, Made]:
            plgpu.wgmma(one, *pair.first)
            plgpu.wgmma(two, scratch, pair.second[1])
            pair.issued()
            if pair.apart:
                raw, product = plgpu.wgmma_accumulator_load(one, wait_n=0), plgpu.wgmma_accumulator_load(two, wait_n=0)
                pair.done()
                made, factor = pair.use(raw)
            else:
                made, factor = pair.use(plgpu.wgmma_accumulator_load(one, wait_n=1))
                product = plgpu.wgmma_accumulator_load(two, wait_n=0)
                pair.done()
            return (total + product) * factor, made

        return pl.run_scoped(compute, _accumulator(pair.first), _accumulator(pair.second))

    @staticmethod
    def finish(running: Running, total: Any, a: jax.Array, b: Any, scratch: Any) -> jax.Array:
        return Simulated.add(total, a, b, scratch)

    @staticmethod
    def add_shared(total: jax.Array, a: Any, b: Any) -> jax.Array:
        return total + product(a, b)

    @staticmethod
    def add_to_global(target: Any, value: jax.Array, stage: Any) -> None:
        """Reads and writes: the simulator runs one program after the other."""
        stage[...] = target[...] + value
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(stage, target)
        plgpu.wait_smem_to_gmem(0)

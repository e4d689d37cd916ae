"""The head's loss on the device: checks the kernel, and compares its time and memory with other implementations."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.gpu.check import add_check, compared
from benchmarks.gpu.journal import Journal
from benchmarks.gpu.programs import compile_all, seconds_of, why_not
from pallas_kernels import fused_linear_cross_entropy
from pallas_kernels.device import INTERPRETER, target
from pallas_kernels.linear_cross_entropy import Tile
from pallas_kernels.linear_cross_entropy.registry import REGISTRY, Request

CHECKED: dict[str, tuple[tuple[int, int, int], dict[str, Any]]] = {
    "one token": ((1, 64, 200), {}),
    "nothing divides": ((203, 200, 1025), {"softcap": 20.0, "z_loss": 1e-2, "vocab": 1000}),
    "all divides": ((512, 512, 4096), {}),
    "soft-cap, table of rows": ((512, 512, 4096), {"softcap": 20.0, "vocab_first": True}),
    "z-loss, table of rows": ((1023, 256, 5000), {"z_loss": 1e-2, "vocab_first": True}),
    "50257 columns": ((1024, 768, 50257), {}),
    "one token, logits kept": ((1, 64, 200), {"keep": True}),
    "nothing divides, logits kept": ((203, 200, 1025), {"softcap": 20.0, "z_loss": 1e-2, "vocab": 1000, "keep": True}),
    "table of rows, logits kept": ((512, 512, 4096), {"vocab_first": True, "keep": True}),
    "50257 columns, logits kept": ((1024, 768, 50257), {"keep": True}),
}
"""(tokens, embed, columns) and options."""
DRY_CHECKED = {
    "small": ((24, 40, 300), {"softcap": 20.0, "z_loss": 1e-2, "vocab": 290}),
    "small, logits kept": ((24, 40, 300), {"softcap": 20.0, "z_loss": 1e-2, "vocab": 290, "keep": True}),
}
DRY = {"implementation": "triton", "interpret": True, "tile": Tile(32, 128, 32, warps=4, stages=2)}


def check(journal: Journal) -> None:
    """The kernel's loss, log-sum-exp and gradients against float64: at most twice the error of logits that are kept."""
    for case, given in (DRY_CHECKED if journal.dry else CHECKED).items():
        check_case(journal, case, given)


def check_case(journal: Journal, case: str, given: tuple[tuple[int, int, int], dict[str, Any]]) -> None:
    """Adds the row of one case."""
    shape, options = given
    device = INTERPRETER if journal.dry else target()
    refused = REGISTRY["triton"].supports(Request(*shape, dtype="bfloat16", **device._asdict()))
    compare = partial(_compare, shape, options, kernel_options(journal.dry))
    add_check(journal, "linear_cross_entropy/triton", f"{case}, {shape}", refused, compare)


def kernel_options(dry: bool) -> dict[str, Any]:
    """What asks `fused_linear_cross_entropy` for the kernel."""
    return DRY if dry else {"implementation": "triton"}


RESULTS = ("loss", "lse", "dx", "d_table")


def _gradients(function: Any) -> Any:
    """The result is of (x, table [embed, columns], weights): losses, and the gradients of their weighted sum."""

    def program(x: jax.Array, table: jax.Array, weights: jax.Array) -> tuple:
        (loss, lse), pullback = jax.vjp(function, x, table)
        return loss, lse, *pullback((weights, jnp.zeros_like(weights)))

    return jax.jit(program)


def _arrays(shape: tuple[int, int, int], options: dict[str, Any]) -> tuple[jax.Array, ...]:
    """x, table, weights and labels."""
    tokens, embed, columns = shape
    keys = jax.random.split(jax.random.key(0), 4)
    x = jax.random.normal(keys[0], (tokens, embed), jnp.float32).astype(jnp.bfloat16)
    table = (2 * embed**-0.5 * jax.random.normal(keys[1], (embed, columns), jnp.float32)).astype(jnp.bfloat16)
    labels = jax.random.randint(keys[2], (tokens,), 0, options.get("vocab", columns)).at[0].set(-100)
    return x, table, jax.random.normal(keys[3], (tokens,), jnp.float32), labels


def program(shape: tuple[int, int, int], options: dict[str, Any], kernel: dict[str, Any]) -> tuple[Any, tuple]:
    """The kernel's losses and gradients, and the arrays that they are of."""
    *arrays, labels = _arrays(shape, options)

    def fused(x: jax.Array, table: jax.Array) -> tuple[jax.Array, jax.Array]:
        table = table.T if options.get("vocab_first", False) else table
        found = fused_linear_cross_entropy(x, table, labels, **kernel, **options, chunk_bytes=1 << 24)
        return found.loss, found.lse

    return _gradients(fused), tuple(arrays)


def _compare(shape: tuple[int, int, int], options: dict[str, Any], kernel: dict[str, Any]) -> dict[str, Any]:
    x, table, weights, labels = _arrays(shape, options)
    kept = lambda x, table: kept_logits(x, table, labels, **options)
    run, _ = program(shape, options, kernel)
    have, again = (jax.device_get(run(x, table, weights)) for _ in range(2))
    low = jax.device_get(_gradients(kept)(x, table, weights))
    with jax.enable_x64(True):
        wanted = jax.device_get(_gradients(kept)(*(jnp.asarray(a, jnp.float64) for a in (x, table, weights))))
    return compared(RESULTS, have, again, low, wanted)


def kept_logits(
    x: jax.Array, table: jax.Array, labels: jax.Array, *, vocab: int | None = None, softcap: float | None = None,
    z_loss: float = 0.0, vocab_first: bool = False, keep: bool = True,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """Loss and log-sum-exp by logits that are kept whole, in float32 or, for float64 inputs, in float64."""
    del vocab_first, keep  # the table is [embed, columns] here
    wide = jnp.promote_types(x.dtype, jnp.float32)
    logits = jnp.matmul(x, table[:, :vocab], preferred_element_type=wide)
    logits = logits if softcap is None else softcap * jnp.tanh(logits / softcap)
    lse, counts = jax.nn.logsumexp(logits, axis=-1), labels != -100
    label = jnp.take_along_axis(logits, jnp.where(counts, labels, 0)[:, None], axis=1)[:, 0]
    return jnp.where(counts, lse - label + z_loss * lse**2, 0.0), jnp.where(counts, lse, 0.0)


def measure(journal: Journal) -> None:
    """Forward and backward of the mean loss of 16k tokens, 4096 wide, over 152k columns."""
    tokens, embed, columns = (64, 32, 640) if journal.dry else (16384, 4096, 152064)
    what = f"{tokens} x {embed} x {columns}"
    if journal.ended(what):
        return
    journal.begin(what)
    x = jnp.ones((tokens, embed), jnp.bfloat16)
    table = jax.random.normal(jax.random.key(0), (embed, columns), jnp.bfloat16) * 0.02
    labels = jnp.arange(tokens, dtype=jnp.int32) % columns

    def full(x: jax.Array, table: jax.Array) -> jax.Array:
        return kept_logits(x, table, labels)[0].mean()

    def fused(**options: Any) -> Any:
        return lambda x, table: fused_linear_cross_entropy(x, table, labels, **options).loss.mean()

    losses = {
        "fused": fused(**kernel_options(journal.dry)),
        "fused, logits kept": fused(**kernel_options(journal.dry), keep=True),
        "chunks in plain JAX": fused(implementation="xla"),
        "full logits": full,
    }
    functions = {name: jax.jit(jax.value_and_grad(loss, (0, 1))) for name, loss in losses.items()}
    functions["jaxpar's tiles"] = _tiled(labels, columns, max(1, round(tokens * columns * 4 / 2**30)))
    compiled = compile_all(journal, what, {name: (lambda f=f: f.lower(x, table)) for name, f in functions.items()})
    calls = {}
    row = {"tokens": tokens, "embed": embed, "columns": columns}
    for name, program in compiled.items():
        if isinstance(program, Exception):
            journal.add("cross_entropy", **row, by=name, **why_not(program))
            continue
        calls[name] = lambda program=program: program(x, table)
        try:
            jax.block_until_ready(calls[name]())
        except Exception as error:  # reported in the table; the others are still timed
            journal.add("cross_entropy", **row, by=name, **why_not(error))
            del calls[name]
    for name, seconds in seconds_of(calls, 2 if journal.dry else 5).items():
        memory = compiled[name].memory_analysis()
        tflops = 6.0 * tokens * embed * columns / seconds["seconds"] / 1e12
        journal.add(
            "cross_entropy", **row, by=name, tflops=tflops, temporary_bytes=memory.temp_size_in_bytes, **seconds
        )


def _tiled(labels: jax.Array, columns: int, tiles: int) -> Any:
    """`jaxpar.model.tiled_loss` on a mesh of one device: gradients made along with the loss."""
    from jax.sharding import AxisType, PartitionSpec

    from jaxpar.config import ModelConfig
    from jaxpar.mesh.axes import AXES, vary
    from jaxpar.mesh.collectives import reduce_sum
    from jaxpar.model.tiled_loss import HeadLoss, tiled_cross_entropy

    loss: Any = tiled_cross_entropy
    mesh = jax.make_mesh((1,) * len(AXES), AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=jax.devices()[:1])
    counted = [axis for axis in AXES if axis != "tensor"]

    def program(x: jax.Array, table: jax.Array) -> Any:
        head = HeadLoss(ModelConfig(embed=x.shape[1], vocab=columns), ("tensor",), tiles)
        mask = jnp.full((1, len(labels)), 1.0 / len(labels), jnp.float32)

        def total(x: jax.Array, table: jax.Array) -> jax.Array:
            sums = loss(vary(x[None]), vary(table), labels[None], vary(mask, counted), head)
            return reduce_sum(sums[0], counted)

        return jax.value_and_grad(total, (0, 1))(x, table)

    none = PartitionSpec()
    return jax.jit(jax.shard_map(program, mesh=mesh, in_specs=(none, none), out_specs=(none, (none, none))))

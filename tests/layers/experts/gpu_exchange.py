"""The exchange of tokens, forward and backward, compiled for H100s that are not here; child only.

Products are stand-ins of the same work for every expert, so that the account depends on no kernel.
"""

from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxpar.compiler.program.attribution import movements
from jaxpar.compiler.program.costs.ops import costs
from jaxpar.compiler.program.from_program import schedule
from jaxpar.compiler.program.hlo.parser import parse
from jaxpar.compiler.program.loops import executions
from jaxpar.compiler.report.step_timer import StepTimer
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.plan import Choice, ExpertLayout
from jaxpar.cost.hardware_model import hardware_of
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layers.experts.exchange import EXCHANGES
from jaxpar.layers.experts.rounds import Operands, exchanged, stacked_lists
from jaxpar.mesh.axes import AXES, vary
from tests.gpu_compile import compile_for_gpu, h100s


def account(layout: dict[str, Any], sizes: dict[str, int], hosts: int = 2) -> dict[str, Any]:
    """Of one layer of experts, forward and backward: bytes sent by a device, seconds of compute and of the exchange,
    what of that is exposed, for each message (exposed, its seconds, its kind), the bytes of each buffer that is filled
    with a constant, the largest first, and how many scatters there are.

    `sizes`: tokens of a device, embed, width, count and per_token of experts, width of the shared ones, expert ranks.
    """
    chosen = {key: value if key in ("capacity", "node_devices") else Choice(value) for key, value in layout.items()}
    own, ranks = ExpertLayout(**chosen), sizes["expert"]
    experts = ExpertsConfig(count=sizes["count"], per_token=sizes["per_token"])
    shape = tuple(ranks if axis == "expert" else 1 for axis in AXES)
    devices = np.array(h100s(f"1x{hosts}x{ranks // hosts}")[:ranks]).reshape(shape)
    mesh = Mesh(devices, AXES, axis_types=(AxisType.Auto,) * len(AXES))

    def products(operands: Operands, rows: jax.Array, gates: jax.Array, _: jax.Array) -> jax.Array:
        w: Any = operands.weights
        groups, even = w["up"].shape[0], len(rows)
        used = -(-even // groups // 8) * 8
        rows = jnp.pad(rows, [(0, used * groups - even), (0, 0)]).reshape(groups, used, -1)
        hidden = jax.nn.silu(jnp.einsum("gmk,gkn->gmn", rows, w["gate"])) * jnp.einsum("gmk,gkn->gmn", rows, w["up"])
        found = jnp.einsum("gmk,gkn->gmn", hidden, w["down"]).reshape(used * groups, -1)[:even]
        return found * gates[:, None].astype(found.dtype)

    def both(w: Any, x: jax.Array, gates: jax.Array, indices: jax.Array) -> Any:
        w, x, gates, indices = vary((w, x, gates, indices))

        def forward(w: Any, x: jax.Array, gates: jax.Array) -> jax.Array:
            in_, out = (w[name].squeeze(0) for name in ("shared_in", "shared_out"))
            shared = (lambda x: jax.nn.silu(x @ in_) @ out) if sizes.get("shared") else None
            exchange = EXCHANGES[own.exchange.name](experts, len(x) // own.slices.name, own)
            lists = stacked_lists(exchange, own.slices.name, indices, vary(jnp.ones(len(x), bool)))
            return exchanged(exchange, products, Operands(w, {}), x, gates, lists, shared)[0]

        y, pullback = jax.vjp(forward, w, x, gates)
        return y, pullback(jnp.square(y))

    spec = P("expert")
    mapped = jax.shard_map(both, mesh=mesh, in_specs=spec, out_specs=P(AXES))
    tokens, embed, width, count = (sizes[name] for name in ("tokens", "embed", "width", "count"))
    made = lambda dtype, *shape: jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))
    bf16 = jnp.bfloat16
    w = {"up": made(bf16, count, embed, width), "gate": made(bf16, count, embed, width)}
    w["down"] = made(bf16, count, width, embed)
    w["shared_in"] = made(bf16, ranks, embed, sizes.get("shared", 8))
    w["shared_out"] = made(bf16, ranks, sizes.get("shared", 8), embed)
    chosen = (tokens * ranks, sizes["per_token"])
    arguments = w, made(bf16, tokens * ranks, embed), made(jnp.float32, *chosen), made(jnp.int32, *chosen)
    return _read(compile_for_gpu(jax.jit(mapped), *arguments).as_text(), dict(zip(AXES, shape, strict=True)), hosts)


def _read(text: str, axes: dict[str, int], hosts: int) -> dict[str, Any]:
    module = parse(text)
    counts = executions(module)
    each = prod(axes.values()) // hosts
    cluster = parse_cluster(f"h100:{hosts}x{each}")
    timer = StepTimer(cluster.gpu, cluster, hardware_of(cluster.gpu))
    kernels = costs(module, counts)
    assert not module.unknown.notes()
    times = {cost.op.name: timer.kernel(cost) for cost in kernels}
    found = schedule(module, movements(module, counts, axes, each), times, timer.transfer, 0.0)
    # Loads are even, so that rounds after the first run no times.
    exchanges = [o for o in found.overlaps if "exchange_tokens" in o.movement.collectives and o.movement.executions]
    filled = [cost.written_bytes for cost in kernels if cost.kind == "copy" and not cost.read_bytes and cost.executions]
    scatters = [op.op_name for one in module.computations.values() for op in one.ops if op.opcode == "scatter"]
    return {
        "bytes": sum(part.sent_bytes for one in exchanges for part in one.movement.parts),
        "compute": found.step.compute,
        "exchange": sum(one.time.seconds for one in exchanges),
        "exposed": sum(one.time.exposed for one in exchanges),
        "messages": [(one.time.exposed, one.time.seconds, one.movement.kind) for one in exchanges],
        "filled": sorted(filled, reverse=True),
        "scatters": [name for name in scatters if not name.endswith("/sort")],  # XLA inverts a permutation with one
    }

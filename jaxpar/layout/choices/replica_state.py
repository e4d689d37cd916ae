"""Whether replicas share master weights and optimizer state."""

from __future__ import annotations

from jaxpar.config import Config, UserError
from jaxpar.config.plan import AxisSizes, Choice, Plan
from jaxpar.distributed.devices import Device


def state_over_replicas(config: Config, axes: AxisSizes, device: Device) -> Choice[bool]:
    """The meaning of `parallel.overlap.shard_state_over_replicas` of a resolved configuration on devices like `device`.

    Compiled programs were faster with it, and took less memory (docs/overlap.md); `auto` takes it where they were
    compared.
    """
    asked = config.parallel.overlap.shard_state_over_replicas
    if axes.replica == 1 or config.parallel.zero == 0:
        return Choice(False)
    if asked != "auto":
        return Choice(asked, "named by parallel.overlap.shard_state_over_replicas")
    elsewhere = {
        "but under parallel.zero: 3": config.parallel.zero != 3,
        "but with weights on several ranks of a replica": axes.shards == 1,
        "on CPU devices": device.platform == "cpu",
        "with a pipeline": axes.pipe > 1,
        "with optimizer state on the host": config.memory.optimizer_offload != "none",
        "with quantized matmuls": config.precision.matmul is not None,
    }
    why = next((f"no program was compared {where}" for where, holds in elsewhere.items() if holds), None)
    return Choice(why is None, why or "it sends three quarters of the bytes between replicas, and takes less memory")


def check_state_over_replicas(plan: Plan, config: Config) -> None:
    """Raise `UserError` if a plan splits state over replicas where there is one, or where the configuration shards
    nothing, or where layers are read from the state."""
    if not plan.shard_state_over_replicas.name:
        return
    key, offload = "plan.shard_state_over_replicas: true", config.memory.weights_offload
    if plan.axes.replica == 1:
        raise UserError(f"{key} needs several replicas, and plan.axes.replica is 1; expected false")
    if config.parallel.zero == 0:
        raise UserError(f"{key} shards optimizer state, and parallel.zero: 0 shards nothing; expected false")
    if offload != "none":
        raise UserError(
            f"{key} excludes memory.weights_offload: {offload}, which reads each layer from its master weights with "
            "every use; expected false"
        )

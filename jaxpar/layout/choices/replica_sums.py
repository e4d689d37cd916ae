"""When gradients are summed over the ranks that no placement shards them over: after the backward, or beside it."""

from __future__ import annotations

from typing import Literal

from jaxpar.config import Config, UserError
from jaxpar.config.plan import AxisSizes, Choice, Plan
from jaxpar.distributed.devices import Device


def replica_sums(config: Config, axes: AxisSizes, device: Device) -> Choice[Literal["after", "overlapped"]]:
    """The meaning of `parallel.overlap.replica_sums` of a resolved configuration on devices like `device`.

    Raises `UserError` for `overlapped` where it is impossible.
    """
    asked = config.parallel.overlap.replica_sums
    impossible = _impossible(config, axes)
    if asked == "overlapped":
        if impossible is not None:
            raise UserError(
                f"parallel.overlap.replica_sums: overlapped is impossible, because {impossible}; expected auto"
            )
        return Choice("overlapped", "named by parallel.overlap.replica_sums")
    if not _sums(axes.replica, axes.shards, config.parallel.zero):
        return Choice("after")
    if asked == "after":
        return Choice("after", "named by parallel.overlap.replica_sums")
    if impossible is not None:
        return Choice("after", impossible)
    if device.platform == "cpu":
        return Choice("after", "CPU devices overlap nothing")
    return Choice("overlapped", "beside the backward of the last microbatch")


def state_over_replicas(config: Config, axes: AxisSizes, device: Device, sums: str) -> Choice[bool]:
    """The meaning of `parallel.overlap.shard_state_over_replicas` of a resolved configuration on devices like `device`,
    whose sums over replicas are as `sums` names them.

    Compiled programs waited for less, and took less memory, where both messages over replicas overlap
    (docs/overlap.md).
    """
    asked = config.parallel.overlap.shard_state_over_replicas
    if axes.replica == 1 or config.parallel.zero == 0:
        return Choice(False)
    if asked != "auto":
        return Choice(asked, "named by parallel.overlap.shard_state_over_replicas")
    if config.parallel.zero != 3:
        return Choice(False, "no program was compared but under parallel.zero: 3")
    if axes.shards == 1:
        return Choice(False, "no program was compared but with weights on several ranks of a replica")
    if device.platform == "cpu":
        return Choice(False, "CPU devices overlap nothing")
    offloaded = config.memory.optimizer_offload != "none"
    why = _gathered_before(sums, offloaded=offloaded, codes=config.precision.matmul is not None)
    return Choice(why is None, "both messages over replicas overlap" if why is None else why)


def check_replica_sums(plan: Plan, config: Config) -> None:
    """Raise `UserError` if a plan overlaps sums that the configuration cannot overlap."""
    if plan.replica_sums.name == "overlapped" and (why := _impossible(config, plan.axes)) is not None:
        raise UserError(f"plan.replica_sums: overlapped is impossible, because {why}; expected after")


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


def gathers_with_first_use(plan: Plan) -> bool:
    """Whether layers' new weights are gathered over replicas in the first microbatch's forward, each with its first
    use, and not before it."""
    return plan.shard_state_over_replicas.name and why_gathered_before(plan) is None


def why_gathered_before(plan: Plan) -> str | None:
    """Why new weights that replicas share are all gathered before the forward; None if layers' are in it."""
    offloaded, codes = plan.optimizer_offload == "host", plan.dtypes.matmul is not None
    return _gathered_before(plan.replica_sums.name, offloaded=offloaded, codes=codes)


def _gathered_before(sums: str, *, offloaded: bool, codes: bool) -> str | None:
    if sums != "overlapped":
        return "sums over replicas do not overlap"
    if offloaded:
        return "master weights in host memory are copied to the device before the forward"
    if codes:
        return "with quantised matmuls the matrices of all layers become codes together"
    return None


def _sums(replica: int, shards: int, zero: int) -> bool:
    """Whether gradients of matrices are summed once a step and keep their shape."""
    return replica > 1 or (zero == 0 and shards > 1)


def only_after(pipe: int, replica: int, shards: int, zero: int) -> str | None:
    """Why no sum runs beside the backward on so many ranks, of which ZeRO shards over `shards`; None if one may."""
    if not _sums(replica, shards, zero):
        return "gradients are not summed over replicas (parallel.replica is 1)"
    if pipe > 1:
        return "the gradients of a pipeline's chunks are complete at different times on different ranks"
    if zero == 1 and shards > 1:
        return "under parallel.zero: 1 gradients are first scattered, once all are complete"
    return None


def _impossible(config: Config, axes: AxisSizes) -> str | None:
    """Why no sum runs beside the backward; None if one may."""
    if (why := only_after(axes.pipe, axes.replica, axes.shards, config.parallel.zero)) is not None:
        return why
    if config.memory.weights_offload != "none":
        return "under memory.weights_offload gradients of layers are in host memory"
    return None

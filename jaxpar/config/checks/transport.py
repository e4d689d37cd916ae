"""Checks of the transport of weights: hpZ, state over replicas and quantized messages."""

from __future__ import annotations

from jaxpar.config.axes import SHARD_AXES
from jaxpar.config.checks.sizes import divides, known
from jaxpar.config.errors import UserError
from jaxpar.config.schema import Config


def check_hpz(config: Config) -> None:
    """Refuse an hpZ shard without sharded weights, or whose ranks do not divide those that they are sharded over;
    while an axis is -1 their number is not known."""
    parallel = config.parallel
    shard = parallel.hpz
    if shard is None:
        return
    if parallel.zero != 3:
        raise UserError(
            f"parallel.hpz: {shard} is for weights that are sharded between their uses, and parallel.zero "
            f"is {parallel.zero}; expected parallel.zero: 3 with it, or null"
        )
    if -1 in (getattr(parallel, axis) for axis in SHARD_AXES):
        return
    ranks, over = known(parallel, *SHARD_AXES), f"parallel.{' x '.join(SHARD_AXES)}"
    divides(over, ranks, "parallel.hpz", shard)
    if ranks == shard:
        raise UserError(
            f"parallel.hpz: {shard} would not be used, because the weights are sharded over no more than "
            f"{ranks} ranks ({over}); expected fewer, or null"
        )


def check_state_over_replicas(config: Config) -> None:
    """Refuse optimizer state that is to be split over replicas where there are none, or where nothing is sharded, or
    where layers are read from it."""
    parallel, key = config.parallel, "parallel.overlap.shard_state_over_replicas: true"
    if parallel.overlap.shard_state_over_replicas is not True or parallel.auto:
        return
    if parallel.replica == 1:
        raise UserError(
            f"{key} would not be used, because there is one replica (parallel.replica is 1); expected more with it, or "
            "false"
        )
    if parallel.zero == 0:
        raise UserError(
            f"{key} shards optimizer state, and parallel.zero: 0 shards nothing; expected parallel.zero: 1, 2 or 3 "
            "with it, or false"
        )
    if config.memory.weights_offload != "none":
        raise UserError(
            f"{key} excludes memory.weights_offload: {config.memory.weights_offload}, which reads each layer from its "
            "master weights with every use; expected none with it, or false"
        )


def check_quantized(config: Config) -> None:
    """Refuse a quantized gather where no weight is sharded."""
    parallel = config.parallel
    weights = parallel.quantized.weights
    if weights is not None and parallel.zero == 0 and known(parallel, *SHARD_AXES) > 1:
        raise UserError(
            f"parallel.quantized.weights: {weights} would not be used, because parallel.zero: 0 gathers no weights; "
            "expected parallel.zero: 1, 2 or 3 with it, or null"
        )

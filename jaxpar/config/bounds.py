"""The range of every numeric key, by itself; what must hold between keys is in `validate.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Bound:
    """A range of numbers and its words."""

    words: str
    holds: Callable[[float], bool]


def _at_least(low: int) -> Bound:
    return Bound(f"at least {low}", lambda value: value >= low)


_POSITIVE = Bound("above 0", lambda value: value > 0)
_SHARE = Bound("from 0 to 1", lambda value: 0 <= value <= 1)
_BELOW_ONE = Bound("from 0 to below 1", lambda value: 0 <= value < 1)
_ABOVE_ONE = Bound("above 1", lambda value: value > 1)
_BETWEEN = Bound("above 0 and below 1", lambda value: 0 < value < 1)
_SEED = Bound("from 0 to 2^32 - 1", lambda value: 0 <= value < 2**32)
_AXIS = Bound("at least 1, or -1 for what remains", lambda value: value >= 1 or value == -1)

BOUNDS: dict[str, Bound] = {
    "run.steps": _at_least(1),
    "run.seed": _SEED,
    "run.log_every": _at_least(1),
    "run.max_skipped_steps": _at_least(1),
    "model.layers": _at_least(1),
    "model.embed": _at_least(1),
    "model.heads": _at_least(1),
    "model.kv_heads": _at_least(1),
    "model.head_dim": _at_least(1),
    "model.mlp": _at_least(1),
    "model.vocab": _at_least(1),
    "model.vocab_multiple": _at_least(1),
    "model.norm_epsilon": _POSITIVE,
    "model.max_positions": _at_least(1),
    "model.rope_base": _POSITIVE,
    "model.rope_factor": _POSITIVE,
    "model.rope_original_length": _at_least(1),
    "model.rope_low_frequency": _POSITIVE,
    "model.rope_high_frequency": _POSITIVE,
    "model.window": _at_least(1),
    "model.logit_softcap": _POSITIVE,
    "model.attention_softcap": _POSITIVE,
    "model.dropout": _BELOW_ONE,
    "model.init_scale": _POSITIVE,
    "model.z_loss": _at_least(0),
    "parallel.pipe": _AXIS,
    "parallel.replica": _AXIS,
    "parallel.fsdp": _AXIS,
    "parallel.expert": _AXIS,
    "parallel.context": _AXIS,
    "parallel.tensor": _AXIS,
    "parallel.microbatches": _at_least(1),
    "parallel.ulysses": _at_least(1),
    "parallel.virtual_stages": _at_least(1),
    "precision.loss_scale": _POSITIVE,
    "precision.loss_scale_interval": _at_least(1),
    "memory.offload_fraction": _SHARE,
    "memory.offload_smallest": _at_least(1),
    "memory.host_limit": _at_least(0),
    "memory.optimizer_resident": _at_least(0),
    "memory.weights_resident": _at_least(0),
    "memory.loss_tiles": _at_least(1),
    "memory.mlp_tiles": _at_least(1),
    "attention.query_block": _at_least(1),
    "attention.kv_block": _at_least(1),
    "optimizer.learning_rate": _at_least(0),
    "optimizer.beta1": _BELOW_ONE,
    "optimizer.beta2": _BELOW_ONE,
    "optimizer.epsilon": _POSITIVE,
    "optimizer.weight_decay": _at_least(0),
    "optimizer.clip_norm": _POSITIVE,
    "optimizer.warmup_steps": _at_least(0),
    "optimizer.decay_steps": _at_least(1),
    "optimizer.decay_fraction": _SHARE,
    "optimizer.final_fraction": _SHARE,
    "optimizer.muon_learning_rate": _at_least(0),
    "optimizer.muon_momentum": _BELOW_ONE,
    "optimizer.muon_iterations": _at_least(1),
    "optimizer.lion_beta1": _BELOW_ONE,
    "optimizer.lion_beta2": _BELOW_ONE,
    "optimizer.ema": _BETWEEN,
    "data.separator": _at_least(0),
    "data.sequence_length": _at_least(1),
    "data.batch_size": _at_least(1),
    "data.prefetch": _at_least(0),
    "evaluation.every": _at_least(0),
    "evaluation.batches": _at_least(0),
    "evaluation.sample_tokens": _at_least(0),
    "evaluation.sample_temperature": _at_least(0),
    "checkpoint.every": _at_least(0),
    "checkpoint.keep_last": _at_least(1),
    "checkpoint.keep_every": _at_least(1),
    "watch.spike": _POSITIVE,
    "watch.spike_window": _at_least(10),
    "watch.skip_batches": _at_least(1),
    "watch.max_rollbacks": _at_least(1),
    "watch.slow_step": _ABOVE_ONE,
    "watch.slow_pace": _ABOVE_ONE,
    "watch.data_wait": _SHARE,
    "watch.straggler": _SHARE,
    "distributed.processes": _at_least(1),
    "distributed.process_id": _at_least(0),
    "distributed.devices_per_process": _at_least(1),
    "distributed.timeout_s": _at_least(1),
    "distributed.heartbeat_timeout_s": _at_least(2),
    "distributed.step_timeout_s": _at_least(1),
    "distributed.pause_timeout_s": _at_least(1),
}
"""`section.key` to the range its value must lie in, unless it is null."""

"""The range of every numeric key; checks between keys are in `validate.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Bound:
    """A range of numbers and its description."""

    words: str
    holds: Callable[[float], bool]
    most: float = 1e30
    """The largest number; most of these limits are only sanity checks, far above what any run has used."""

    def refusal(self, value: float) -> str | None:
        """What is expected of a value out of range."""
        if not self.holds(value):
            return f"must be {self.words}"
        return f"must be at most {spell_limit(self.most)}" if value > self.most else None


def spell_limit(limit: float) -> str:
    """A limit in readable form: `2^31 - 1`, `2^20`, `10000`."""
    if isinstance(limit, float):
        return f"{limit:g}"
    power = (limit + 1).bit_length() - 1
    if limit >= 2**20 and limit == 2**power - 1:
        return f"2^{power} - 1"
    power = limit.bit_length() - 1
    return f"2^{power}" if limit >= 2**12 and limit == 2**power else str(limit)


COUNT = 2**31 - 1
"""The largest 32-bit integer: steps, vocabulary ids and positions are 32-bit integers on devices."""
BYTES = 2**62
CHUNKS = 4
"""Chunks of a tensor rank's part that pass round by themselves."""
CAPACITY = 1e6
PERCENT = 10_000
"""Limit for the percentage of a device's memory that XLA counts with."""
SLICES = 16
"""Slices of an exchange of tokens; each is compiled by itself."""
RANKS = 2**20
"""Limit for the devices of a mesh."""
LAYERS = 10_000
COLLECTIVES = 64
ROWS = 2**24
"""Limit for the rows of a batch."""
WIDTH = 2**24
SEQUENCE = 2**27
MICROBATCHES = 2**14
SECONDS = 1_000_000
"""Limit for timeouts: eleven days, which in milliseconds still fits into 32 bits."""
MINUTES = 1_000_000
"""Limit for the time between two saves: almost two years."""
PARAMETERS = 10**15
"""Limit for the weights of a model."""
TOKENS = 2**36
"""Limit for the tokens of the batches in memory: that of a step, and those prepared ahead."""
UNLIMITED = float("inf")


def _at_least(low: float, most: float = COUNT) -> Bound:
    return Bound(f"at least {low:g}", lambda value: value >= low, most)


_POSITIVE = Bound("above 0", lambda value: value > 0)
_SHARE = Bound("from 0 to 1", lambda value: 0 <= value <= 1, UNLIMITED)
_BELOW_ONE = Bound("from 0 to below 1", lambda value: 0 <= value < 1, UNLIMITED)
_BELOW_HALF = Bound("from 0 to below 0.5", lambda value: 0 <= value < 0.5, UNLIMITED)
_ABOVE_ONE = Bound("above 1", lambda value: value > 1)
_BETWEEN = Bound("above 0 and below 1", lambda value: 0 < value < 1, UNLIMITED)
_SEED = Bound("from 0 to 2^32 - 1", lambda value: 0 <= value < 2**32, UNLIMITED)
_AXIS = Bound("at least 1, or -1 for what remains", lambda value: value >= 1 or value == -1, RANKS)

BOUNDS: dict[str, Bound] = {
    "run.steps": _at_least(1),
    "run.seed": _SEED,
    "run.log_every": _at_least(1),
    "model.layers": _at_least(1, LAYERS),
    "model.embed": _at_least(1, WIDTH),
    "model.heads": _at_least(1, WIDTH),
    "model.kv_heads": _at_least(1, WIDTH),
    "model.head_dim": _at_least(1, WIDTH),
    "model.mlp": _at_least(1, WIDTH),
    "model.vocab": _at_least(1),
    "model.vocab_multiple": _at_least(1, WIDTH),
    "model.norm_epsilon": _POSITIVE,
    "model.max_positions": _at_least(1),
    "model.rope.base": _POSITIVE,
    "model.rope.partial": Bound("above 0 and at most 1", lambda value: 0 < value <= 1, UNLIMITED),
    "model.rope.factor": _POSITIVE,
    "model.rope.original_length": _at_least(1),
    "model.rope.low_frequency": _POSITIVE,
    "model.rope.high_frequency": _POSITIVE,
    "model.rope.beta_fast": _POSITIVE,
    "model.rope.beta_slow": _POSITIVE,
    "model.rope.attention_factor": _POSITIVE,
    "model.rope.mscale": _at_least(0, 1e30),
    "model.rope.mscale_all_dim": _at_least(0, 1e30),
    "model.window": _at_least(1),
    "model.logit_softcap": _POSITIVE,
    "model.attention_softcap": _POSITIVE,
    "model.attention_scale": _POSITIVE,
    "model.dropout": _BELOW_ONE,
    "model.init_scale": _POSITIVE,
    "model.z_loss": _at_least(0, 1e30),
    "model.latent_attention.kv_rank": _at_least(1, WIDTH),
    "model.latent_attention.query_rank": _at_least(1, WIDTH),
    "model.latent_attention.rope_dim": _at_least(1, WIDTH),
    "model.latent_attention.nope_dim": _at_least(1, WIDTH),
    "model.latent_attention.value_dim": _at_least(1, WIDTH),
    "model.experts.count": _at_least(1),
    "model.experts.per_token": _at_least(1),
    "model.experts.width": _at_least(1, WIDTH),
    "model.experts.shared": _at_least(0),
    "model.experts.router_options.groups": _at_least(1),
    "model.experts.router_options.groups_per_token": _at_least(1),
    "model.experts.router_options.projection": _at_least(1, WIDTH),
    "model.experts.router_options.temperature": _at_least(1e-6, 1e30),
    "model.experts.router_options.last_temperature": _at_least(1e-6, 1e30),
    "model.experts.router_options.anneal_steps": _at_least(1),
    "model.experts.router_options.threshold": _SHARE,
    "model.experts.router_options.scale": _at_least(0, 1e30),
    "model.experts.balance_loss": _at_least(0, 1e30),
    "model.experts.sequence_loss": _at_least(0, 1e30),
    "model.experts.capacity_factor": _at_least(1e-3, 1e30),
    "model.experts.clusters.share": _at_least(1e-3, 1),
    "model.experts.clusters.hashes": _at_least(1, 64),
    "model.experts.clusters.residual": _SHARE,
    "model.experts.z_loss": _at_least(0, 1e30),
    "model.experts.router_options.bias_rate": _at_least(0, 1e30),
    "lora.rank": _at_least(1, WIDTH),
    "lora.alpha": _POSITIVE,
    "parallel.pipe": _AXIS,
    "parallel.replica": _AXIS,
    "parallel.fsdp": _AXIS,
    "parallel.expert": _AXIS,
    "parallel.context": _AXIS,
    "parallel.tensor": _AXIS,
    "parallel.experts.imbalance": Bound("at least 1", lambda value: value >= 1, CAPACITY),
    "parallel.experts.capacity": Bound("at least 1", lambda value: value >= 1, CAPACITY),
    "parallel.experts.slices": _at_least(1, SLICES),
    "parallel.overlap.layer_unroll": _at_least(1, LAYERS),
    "parallel.overlap.collectives_at_once": _at_least(1, COLLECTIVES),
    "parallel.microbatches": _at_least(1, MICROBATCHES),
    "parallel.secondary_shard": _at_least(2, RANKS),
    "parallel.ulysses": _at_least(1, RANKS),
    "parallel.overlap.tensor_chunks": _at_least(1, CHUNKS),
    "parallel.virtual_stages": _at_least(1, LAYERS),
    "precision.matmul_options.first_layers": _at_least(0, LAYERS),
    "precision.matmul_options.last_layers": _at_least(0, LAYERS),
    "precision.matmul_options.history": _at_least(1, 1024),
    "memory.offload_fraction": _SHARE,
    "memory.host_limit": _at_least(0, BYTES),
    "memory.loss_tiles": _at_least(1),
    "memory.mlp_tiles": _at_least(1),
    "attention.query_block": _at_least(1),
    "attention.kv_block": _at_least(1),
    "loss.beta": _POSITIVE,
    "loss.label_smoothing": _BELOW_HALF,
    "optimizer.learning_rate": _at_least(0, 1e30),
    "optimizer.options.beta1": _BELOW_ONE,
    "optimizer.options.beta2": _BELOW_ONE,
    "optimizer.options.epsilon": _POSITIVE,
    "optimizer.weight_decay": _at_least(0, 1e30),
    "optimizer.clip_norm": _POSITIVE,
    "optimizer.warmup_steps": _at_least(0),
    "optimizer.decay_steps": _at_least(1),
    "optimizer.decay_fraction": _SHARE,
    "optimizer.final_fraction": _SHARE,
    "optimizer.matrix_learning_rate": _at_least(0, 1e30),
    "optimizer.options.momentum": _BELOW_ONE,
    "optimizer.options.iterations": _at_least(1, 100),
    "optimizer.ema": _BETWEEN,
    "data.separator": _at_least(0),
    "data.sequence_length": _at_least(1, SEQUENCE),
    "data.batch_size": _at_least(1, ROWS),
    "data.prefetch": _at_least(0, 1024),
    "evaluation.every": _at_least(0),
    "evaluation.batches": _at_least(0, WIDTH),
    "evaluation.sample_tokens": _at_least(0, 2**20),
    "checkpoint.every": _at_least(0),
    "checkpoint.every_minutes": _at_least(0, MINUTES),
    "checkpoint.keep_last": _at_least(1),
    "checkpoint.keep_every": _at_least(1),
    "watch.limits.spike": _POSITIVE,
    "watch.limits.spike_window": _at_least(10, 2**20),
    "watch.skip_batches": _at_least(1),
    "watch.max_rollbacks": _at_least(1),
    "watch.limits.skipped_steps": _at_least(1),
    "watch.limits.slow_step": _ABOVE_ONE,
    "watch.limits.slow_pace": _ABOVE_ONE,
    "watch.limits.data_wait": _SHARE,
    "watch.limits.straggler": _SHARE,
    "distributed.processes": _at_least(1, RANKS),
    "distributed.process_id": _at_least(0, RANKS),
    "distributed.devices_per_process": _at_least(1, RANKS),
    "distributed.timeout_s": _at_least(1, SECONDS),
    "distributed.heartbeat_timeout_s": _at_least(2, SECONDS),
    "distributed.step_timeout_s": _at_least(1, SECONDS),
    "distributed.pause_timeout_s": _at_least(1, SECONDS),
}
"""`section.key`, or `section.mapping.key`, to the range its value must lie in, unless it is null."""

"""Changes of its configuration that leave a run the same run."""

from __future__ import annotations

from jaxpar.config import Config, config_difference

MAY_CHANGE = (
    "parallel.",
    "memory.",
    "attention.",
    "evaluation.",
    "checkpoint.",
    "watch.",
    "distributed.",
    "precision.matmul_options.",
    "rl.sampler.",
)
"""Sections that change how a run is computed and monitored, not what it computes."""

STAYS = ("parallel.islands",)
"""Keys of those sections that stay: weights and optimizer state are local to each island."""

MAY_CHANGE_KEYS = (
    "run.steps",
    "run.dir",
    "run.mirror",
    "run.log_every",
    "run.profile",
    "run.compile_cache",
    "run.wandb",
    "islands.folder",
    "islands.quorum",
    "islands.wait_s",
    "islands.keep_rounds",
    "data.prefetch",
    "data.sources",
    "data.workers",
    "data.later_sources",
    "data.max_epochs",
    "data.validation",
    "optimizer.learning_rate",
    "optimizer.matrix_learning_rate",
    "optimizer.clip_norm",
    "optimizer.ema",
    "precision.matmul",
    "rl.reward_seconds",
    "rl.staleness",
    "rl.on_reward_error",
)
"""Other keys that may change: the length of a run, and the remedies for a run that diverged or exceeds its formats."""


MAY_MOVE = ("data.path", "data.tokenizer", "data.validation_path")
"""Keys that may change with `data.source: stream`, which compares the files to train on and the tokenizer."""


def forbidden_changes(old: Config, new: Config) -> list[str]:
    """`section.key: old -> new` for each value whose change makes it another run."""
    keys = MAY_CHANGE_KEYS + MAY_MOVE * (new.data.source == "stream")
    may_change = lambda key: key in keys or (key.startswith(MAY_CHANGE) and key not in STAYS)
    return [line for line in config_difference(old, new) if not may_change(line.split(":")[0])]

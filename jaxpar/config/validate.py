"""Every check between keys: pure functions, run before a device is used, a file is read or memory is allocated.

The checks are in `jaxpar.config.checks`. Those that need the weights of the model are in `jaxpar.layout.checks`, which
commands call.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxpar.config.axes import BATCH_AXES, ISLANDS, MESH_AXES, SHARD_AXES
from jaxpar.config.checks.islands import check_island_jobs, check_islands
from jaxpar.config.checks.latent_attention import check_latent_attention
from jaxpar.config.checks.layout import (
    check_auto,
    check_batch,
    check_heads,
    check_mesh,
    check_mesh_axes,
    check_pipeline,
    check_sequence,
    check_vocab,
)
from jaxpar.config.checks.loss import check_loss
from jaxpar.config.checks.memory import check_offload, check_tiles, check_weights_offload
from jaxpar.config.checks.model import check_model, check_table
from jaxpar.config.checks.paths import check_paths
from jaxpar.config.checks.run import check_distributed, check_run, check_watch
from jaxpar.config.checks.training import check_batches, check_data, check_matmul, check_optimizer
from jaxpar.config.checks.transport import (
    check_hpz,
    check_quantized,
    check_state_over_replicas,
)
from jaxpar.config.checks.values import check_unused, check_values
from jaxpar.config.schema import Config


def validate(config: Config, since: Config | None = None) -> None:
    """Check what must hold within and between the keys of a configuration.

    A mesh axis of -1 counts as 1, and a vocabulary of null as any size: errors that do not depend on them are raised
    before devices are looked up and data is opened.

    Args:
        config: the configuration.
        since: the same configuration before an axis was filled in or the vocabulary was known, already validated: only
            the rules that depend on what has become known are run.

    Raises:
        UserError: the first thing that is wrong, in one sentence.
    """
    known = None if since is None else resolved_keys(since, config)
    for facts, rule in _RULES:
        if known is None or not known.isdisjoint(facts):
            rule(config)


def resolved_keys(before: Config, now: Config) -> set[str]:
    """The mesh axes, and `vocab`, that differ between two stages of one configuration."""
    axes = {axis for axis in MESH_AXES if getattr(before.parallel, axis) != getattr(now.parallel, axis)}
    return axes | ({VOCAB} if before.model.vocab != now.model.vocab else set())


VOCAB = "vocab"
"""The name by which a rule depends on the vocabulary; the other names are mesh axes."""


_RULES: tuple[tuple[tuple[str, ...], Callable[[Config], None]], ...] = (
    ((), check_values),
    ((), check_paths),
    ((), check_run),
    ((), check_model),
    ((), check_latent_attention),
    ((), check_mesh_axes),
    ((VOCAB,), check_table),
    ((), check_batches),
    (MESH_AXES, check_mesh),
    ((), check_auto),
    (("pipe",), check_pipeline),
    (("tensor",), check_heads),
    ((VOCAB, "pipe", "tensor"), check_vocab),
    (("context", "tensor"), check_sequence),
    (BATCH_AXES, check_batch),
    (SHARD_AXES, check_hpz),
    (SHARD_AXES, check_quantized),
    (("replica",), check_state_over_replicas),
    ((*BATCH_AXES, "context", "tensor"), check_tiles),
    ((), check_offload),
    (("pipe", *SHARD_AXES), check_weights_offload),
    ((), check_unused),
    ((), check_matmul),
    ((), check_optimizer),
    ((), check_data),
    ((), check_loss),
    ((ISLANDS,), check_islands),
    ((ISLANDS,), check_island_jobs),
    ((), check_watch),
    ((), check_distributed),
)
"""The rules in the order in which they run, each with the mesh axes that it depends on."""

"""All checks of a configuration, including those that need the weights of its layers."""

from __future__ import annotations

from jaxpar.config.axes import MESH_AXES
from jaxpar.config.schema import Config
from jaxpar.config.validate import VOCAB, resolved_keys
from jaxpar.config.validate import validate as validate_keys
from jaxpar.layout.checks.adapters import check_adapters, check_targets
from jaxpar.layout.checks.matmul import check_exceptions, check_ranks
from jaxpar.layout.checks.model import check_blocks, check_convolutions, check_input, check_low_rank, check_parameters
from jaxpar.layout.checks.spikes import check_spikes


def validate(config: Config, since: Config | None = None) -> None:
    """`jaxpar.config.validate.validate`, and checks of what the declared layers have and support.

    Raises:
        UserError: the first thing that is wrong, in one sentence.
    """
    validate_keys(config, since)
    if since is None:
        check_adapters(config)
        check_blocks(config)
        check_input(config)
        check_low_rank(config.model)
    if since is None or VOCAB in resolved_keys(since, config):
        check_parameters(config.model)
    if since is None:
        check_targets(config)
        check_exceptions(config)
        check_spikes(config)
    if since is None or not resolved_keys(since, config).isdisjoint(MESH_AXES):
        check_ranks(config)
        check_convolutions(config)

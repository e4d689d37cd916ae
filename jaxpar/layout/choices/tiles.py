"""The number of tiles of tokens in head and feed-forward, by ALST's rules (arXiv:2506.13996)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from jaxpar.config import Config, ModelConfig, UserError
from jaxpar.config.axes import BATCH_AXES
from jaxpar.config.counting import padded_vocab
from jaxpar.config.kinds import kind_models
from jaxpar.config.plan import Choice, LayerRun
from jaxpar.cost.head import tiles_of_logits
from jaxpar.layers.declared import declare_layer, hidden_names
from jaxpar.memory.layer_shape import ITEM_BYTES, LayerShape, inside_numbers
from jaxpar.memory.remat import Treatment, joined
from jaxpar.pages.units import GIB, size


def without_hidden(runs: Sequence[LayerRun], mlp_tiles: int) -> tuple[LayerRun, ...]:
    """Remat of layers whose feed-forward is in tiles: they save none of the activations inside it.

    Raises `UserError` if one of these is to be offloaded.
    """
    if mlp_tiles == 1:
        return tuple(runs)
    hidden = [name for name in runs[0].activations if name in hidden_names()]
    for name in hidden:
        if any(run.activations[name] == "offload" for run in runs):
            raise UserError(
                f"memory.remat.{name}: expected recompute, because memory.mlp_tiles: {mlp_tiles} has these activations "
                "for one tile at a time, got offload"
            )
    again: dict[str, Treatment] = dict.fromkeys(hidden, "recompute")
    return joined(LayerRun(run.layers, run.activations | again) for run in runs)


def loss_tiles(config: Config) -> Choice[int]:
    """Number of tiles with float32 logits of 1 GiB or less, unless the configuration gives a number."""
    bytes_of = 4 * head_tokens(config) * head_columns(config)
    logits = f"a microbatch has {size(bytes_of)} of logits"
    if config.memory.loss_tiles is not None:
        return Choice(config.memory.loss_tiles, f"asked for; {logits}")
    tiles = tiles_of_logits(head_tokens(config), head_columns(config))
    return Choice(min(tiles, _part(config)), f"{logits}, at most 1 GiB at a time")


def mlp_tiles(config: Config, runs: Sequence[LayerRun], splits_backward: bool) -> Choice[int]:
    """Number of tiles of about `model.embed` tokens, unless the configuration gives a number; of dense layers.

    `runs` is what layers keep. The default is one tile where tiles would cost time, because hidden activations are
    saved, or would save little. Raises `UserError` if tiles are configured and the schedule splits the backward.
    """
    model, asked = config.model, config.memory.mlp_tiles
    if asked is not None:
        if asked > 1 and splits_backward:
            raise UserError(
                f"memory.mlp_tiles: {asked} needs a schedule that leaves the backward whole, and parallel.schedule: "
                f"{config.parallel.schedule} keeps the hidden activations from B to W; expected 1 or null"
            )
        return Choice(asked, "asked for")
    if config.precision.matmul is not None:
        return Choice(1, "a tile would have scales of its own (precision.matmul)")
    if splits_backward:
        return Choice(1, "the schedule keeps hidden activations from B to W")
    dense = [layer for layer in kind_models(model).values() if not declare_layer(layer).feed_forward.routed]
    if not dense:
        return Choice(1, "routed feed-forwards are not computed in tiles")
    first = {declare_layer(layer).feed_forward.groups[0].outputs[0] for layer in dense}
    if not all(run.activations[name] == "recompute" for run in runs for name in first):
        return Choice(1, "memory.remat keeps hidden activations")
    bytes_of = max(_hidden_bytes(config, layer) for layer in dense)
    hidden = f"a layer has {size(bytes_of)} of hidden activations"
    if bytes_of <= GIB:
        return Choice(1, hidden)
    return Choice(min(-(-head_tokens(config) // model.embed), _part(config)), hidden)


def _hidden_bytes(config: Config, model: ModelConfig) -> int:
    """Bytes that the matmuls of a layer's feed-forward make and read inside it, of a microbatch on one device."""
    shape = LayerShape(model, rows=1, sequence=1)
    numbers = inside_numbers(shape, declare_layer(model).feed_forward)
    return ITEM_BYTES[config.precision.compute] * numbers * head_tokens(config) // config.parallel.tensor


def head_columns(config: Config) -> int:
    """Columns of the padded vocabulary on one device."""
    parallel = config.parallel
    return padded_vocab(config.model) // (parallel.tensor * (parallel.pipe if parallel.pipe_ends == "shared" else 1))


def head_tokens(config: Config) -> int:
    """Tokens of a microbatch on one device, the parts of the tensor ranks joined."""
    parallel, data = config.parallel, config.data
    rows = data.batch_size // (prod(getattr(parallel, axis) for axis in BATCH_AXES) * parallel.microbatches)
    return rows * data.sequence_length // parallel.context


def _part(config: Config) -> int:
    """Tokens of a microbatch on one device between blocks: no tile has fewer than one of them."""
    return head_tokens(config) // config.parallel.tensor

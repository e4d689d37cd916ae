"""Weights of Hugging Face's format as a checkpoint, written a piece at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxpar.checkpoint import Checkpointer
from jaxpar.checkpoint.facts import HF_FACTS
from jaxpar.checkpoint.folders import CHECKPOINTS
from jaxpar.checkpoint.pieces import Pieces, Region
from jaxpar.config.kinds import layer_kinds
from jaxpar.config.reading.sections import config_to_dict
from jaxpar.config.schema import Config
from jaxpar.interop.conversion.export import GENERATION
from jaxpar.interop.conversion.new_folder import copy_beside
from jaxpar.interop.conversion.tokenizer_files import copy_tokenizer
from jaxpar.interop.mapping.form import ReadPart
from jaxpar.interop.sources.hf_folder import CONFIG, HFFolder
from jaxpar.interop.sources.saved_weights import HF_FILES
from jaxpar.interop.sources.source import Origin, WeightSource, read_part
from jaxpar.mesh.layer_order import LAYERS, LayerOrder
from jaxpar.mesh.parameters import ROUTED, ParamSpec
from jaxpar.model.decoder import decoder_specs

PIECE_BYTES = 64 * 2**20
"""Bytes of a piece of a table or of routed matrices; a piece of other stacked weights is one layer."""


def write_checkpoint(source: HFFolder, folder: Path, report: Callable[[str], None]) -> None:
    """Write the weights into a new folder, in float32, with the files of `config.json` and of the tokenizer."""
    write_weights(source, Config(model=source.model), hf_facts(source.origin), folder, report)
    keep_hf_files(source.origin, folder)


def write_weights(
    source: WeightSource, config: Config, facts: Mapping[str, object], folder: Path, report: Callable[[str], None]
) -> None:
    """Write the weights of a model into a new folder, as a checkpoint in float32 with a configuration and facts."""
    order = LayerOrder.from_kinds([0], [layer_kinds(config.model)])
    master = jax.tree_util.tree_map_with_path(
        lambda path, spec: _ReadPieces(spec, read_part(source, path, spec, order)),
        decoder_specs(config, order),
        is_leaf=lambda leaf: isinstance(leaf, ParamSpec),
    )
    facts = {"config": config_to_dict(config), **facts}
    folder.mkdir(parents=True, exist_ok=True)
    checkpointer = Checkpointer(folder / CHECKPOINTS, keep_last=1, keep_every=None, report=report)
    try:
        checkpointer.save(0, {"master": master, "step": jnp.int32(0)}, facts)
    finally:
        checkpointer.close()


def hf_facts(origin: Origin) -> dict[str, object]:
    """The fact of a checkpoint whose weights came from a folder in Hugging Face's format."""
    return {HF_FACTS: {"family": origin.family.name, "dtypes": origin.dtypes}}


def keep_hf_files(origin: Origin, folder: Path) -> None:
    """Copy `config.json` and the files of the tokenizer to where the folder of a checkpoint has them."""
    (folder / HF_FILES).mkdir()
    for name in (CONFIG, GENERATION):
        if (origin.folder / name).exists():
            copy_beside(origin.folder / name, folder / HF_FILES / name)
    copy_tokenizer(origin.folder, folder / HF_FILES)


@dataclass(frozen=True)
class _ReadPieces(Pieces):
    """A weight that is read while it is saved."""

    spec: ParamSpec
    read: ReadPart
    dtype = np.dtype(np.float32)

    @property
    def shape(self) -> tuple[int, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.spec.shape

    @property
    def piece_shape(self) -> tuple[int, ...]:
        rows, *others = self.shape
        if self.spec.axes[:2] == (LAYERS, ROUTED):
            routed, *of_one = others
            return (1, max(1, min(routed, PIECE_BYTES // (4 * prod(of_one)))), *of_one)
        if self.spec.axes[0] == LAYERS:
            return (1, *others)
        return (max(1, min(rows, PIECE_BYTES // max(1, 4 * prod(others)))), *others)

    def pieces(self) -> Iterator[tuple[Region, np.ndarray]]:
        parts = [
            [slice(first, min(first + step, size)) for first in range(0, size, max(1, step))]
            for size, step in zip(self.shape, self.piece_shape, strict=True)
        ]
        for region in product(*parts):
            yield region, self.read(region)

    def restored(self, read: Callable[[Region], np.ndarray], rows: int) -> object:
        raise AssertionError("a converted model is read by its parts")

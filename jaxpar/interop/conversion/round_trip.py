"""Checks in memory that a conversion and its inverse give the same bits."""

from __future__ import annotations

import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import named, quoted
from jaxpar.interop.conversion.export import Export
from jaxpar.interop.sources.hf_folder import HFFolder


def check_import(source: HFFolder, export: Export) -> None:
    """Check that every tensor of the export equals the one in the source's files.

    Raises:
        UserError: a tensor has other bits.
    """
    for tensor in source.tensors:
        before, after = source.tensor(tensor), export.values(tensor)
        if before.dtype != after.dtype or before.shape != after.shape or before.tobytes() != after.tobytes():
            raise UserError(f"{named(source.path)}: the tensor {quoted(tensor.name, 120)} comes back with other bits")


def check_export(export: Export) -> None:
    """Check that every weight equals the one that is read back from the export.

    Raises:
        UserError: a weight has other bits, because the dtype of its tensor cannot hold it.
    """
    for tensor in export.tensors:
        written = export.values(tensor)
        for index, (weight, before) in enumerate(zip(tensor.weights, export.weights(tensor), strict=True)):
            region = tuple(slice(0, size) for size in before.shape)
            again = tensor.laid.read(index, region, lambda lines, written=written: written[lines]).astype(np.float32)
            if before.astype(np.float32).tobytes() != again.tobytes():
                raise UserError(
                    f"{named(export.source.path)}: the weight {weight} comes back with other bits from the tensor "
                    f"{tensor.name} in {written.dtype.name}; expected --dtype float32, or a loss of precision"
                )

"""Files with a field of each batch, which a loader of tokens does not make: routing that another program recorded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int, Shaped

from jaxpar.checkpoint.errors import reason
from jaxpar.config import UserError
from jaxpar.config.reading.text_file import LONGEST_POINTER, check_pointer, check_regular
from jaxpar.config.spelling import named
from jaxpar.data.tokens.token_file import HEADER_ERRORS
from jaxpar.runtime.batch import Field


@dataclass(frozen=True)
class FieldFolder:
    """A folder with a file for each batch: `00000012.npy` has the field of batch 12, [row, token, *dims]."""

    path: str
    field: Field

    def read(self, examples: Int[np.ndarray, " rows"], rows: int, tokens: int) -> Shaped[np.ndarray, "rows ..."]:
        """The field of some `examples` of a batch of `rows` x `tokens`.

        Raises:
            UserError: the file is missing, of another shape, or has numbers that the field does not have.
        """
        key, file = f"data.{self.field.name}", Path(self.path) / f"{int(examples[0]) // rows:08}.npy"
        try:
            check_regular(file, f"{key}: {named(file)}")
            with file.open("rb") as opened:
                check_pointer(opened.read(LONGEST_POINTER), file, f"{key}: {named(file)}")
            array = np.lib.format.open_memmap(file, mode="r")  # np.load would open archives too.
        except UserError:
            raise
        except (OSError, *HEADER_ERRORS) as error:
            raise UserError(f"{key}: cannot read {named(file)}: {reason(error)}") from None
        wanted = self.field.shape(rows, tokens)
        if array.shape != wanted:
            raise UserError(
                f"{key}: {named(file)} has {list(array.shape)} numbers of {array.dtype}; expected {list(wanted)}"
            )
        try:
            return self.field.checked({self.field.name: array[examples % rows]}, len(examples), tokens)
        except UserError as error:
            raise UserError(f"{key}: {named(file)}: {error}") from None

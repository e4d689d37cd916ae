"""Matrices in float8 with one scale, or one for each output (the format `compressed-tensors`): read as bfloat16.

`NAME` is float8_e4m3fn [outputs, inputs], and `NAME_scale` the factor, of one number or [outputs, 1]. The product is
rounded to float32 and then to bfloat16. Scales of activations, which calibration has found, are not read.
"""

from __future__ import annotations

import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import named, quoted
from jaxpar.interop.mapping.form import Region
from jaxpar.interop.sources.float8_blocks import Float8Files

UNREAD = (".input_scale", ".output_scale", ".k_scale", ".v_scale")
"""Ends of names of scales of activations."""


class CompressedFiles(Float8Files):
    """The tensors of a folder, those in float8 as bfloat16."""

    scales = "_scale"
    unread = UNREAD

    def factors(self, name: str, region: Region) -> np.ndarray:
        stored = self._stored[name + self.scales]
        if stored.shape in ((), (1,)):
            full_region = tuple(slice(0, size) for size in stored.shape)
            return self.read_stored(stored.file, name + self.scales, full_region).astype(np.float32).reshape(1, 1)
        part = (region[0], slice(0, 1))
        return self.read_stored(stored.file, name + self.scales, part).astype(np.float32)

    def check(self, name: str) -> None:
        values, scales = self._stored[name], self._stored.get(name + self.scales)
        outputs = values.shape[0] if values.shape else 0
        if scales is None or len(values.shape) != 2 or scales.shape not in ((), (1,), (outputs, 1)):
            description = "missing" if scales is None else f"{scales.dtype.name} {list(scales.shape)}"
            raise UserError(
                f"{named(values.file)}: the tensor {quoted(name, 120)} is float8 {list(values.shape)}, and "
                f"{quoted(name + self.scales, 120)} is {description}; expected [outputs, inputs], and one scale or "
                f"one for each output, [{outputs}, 1]"
            )

"""Values that blocks record of the tokens of a forward, as fields of a batch, by which a later forward has the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from jaxpar.mesh.axes import vary
from jaxpar.runtime.batch import Field

type Records = Mapping[str, Int[Array, "batch part layers ..."]]
"""The values of all layers for this rank's part of the sequence, by the name of a field."""


def empty_records(fields: Iterable[Field], x: jax.Array) -> Records:
    """The least number of each field for the tokens of `x` [batch, part, ...] in every layer: it stands for none."""

    def empty(field: Field) -> jax.Array:
        assert field.limits is not None, f"the field {field.name} is recorded, and has limits"
        return vary(jnp.full((*x.shape[:2], *field.dims), field.limits[0], field.dtype))

    return {field.name: empty(field) for field in fields}


def with_layer(records: Records, layer: Mapping[str, jax.Array], index: jax.Array) -> Records:
    """`records` with those of the layer `index`, [batch, part, ...], which may be narrower than other layers'."""

    def put(name: str, values: jax.Array) -> jax.Array:
        values, all_layers = values[:, :, None], records[name]
        starts = (0, 0, index, *(0 for _ in values.shape[3:]))
        return lax.dynamic_update_slice(all_layers, values.astype(all_layers.dtype), starts)

    return {**records, **{name: put(name, values) for name, values in layer.items()}}

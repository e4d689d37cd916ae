"""Shapes of layers for tests."""

from dataclasses import replace
from typing import Any

from jaxpar.config.plan import AxisSizes
from jaxpar.config.schema import Config, ModelConfig
from jaxpar.memory.layer_shape import LayerShape, layer_shapes

SIZES = ("rows", "sequence", "context", "tensor", "item_bytes")


def shape_of(**options: Any) -> LayerShape:
    """A layer of a model with some `options`, the others being those of a shape."""
    own = {name: options.pop(name) for name in SIZES if name in options}
    return LayerShape(model=ModelConfig(**options), **own)


def changed(shape: LayerShape, **options: Any) -> LayerShape:
    """`shape` with other sizes, or of a model with other options."""
    own = {name: options.pop(name) for name in SIZES if name in options}
    return replace(shape, model=replace(shape.model, **options), **own)


def layer_shape(config: Config, axes: AxisSizes, rows: int) -> LayerShape:
    """A layer of a model whose layers are all alike, on a mesh of `axes`, with so many rows per device."""
    (shape,) = layer_shapes(config, axes, rows).values()
    return shape

"""Shapes of layers for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jaxpar.config.schema import ModelConfig
from jaxpar.memory.layer_shape import LayerShape

SIZES = ("rows", "sequence", "context", "tensor", "item_bytes")


def shape_of(**options: Any) -> LayerShape:
    """A layer of a model with some `options`, the others being those of a shape."""
    own = {name: options.pop(name) for name in SIZES if name in options}
    return LayerShape(model=ModelConfig(**options), **own)


def changed(shape: LayerShape, **options: Any) -> LayerShape:
    """`shape` with other sizes, or of a model with other options."""
    own = {name: options.pop(name) for name in SIZES if name in options}
    return replace(shape, model=replace(shape.model, **options), **own)

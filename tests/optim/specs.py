"""Weights that tests of optimizers update."""

from jaxpar.mesh.parameters import ParamSpec


def matrix(*shape: int, inputs: int = 1) -> ParamSpec:
    """A stack of matrices that decay: layers first, then `inputs` dims of inputs, then those of outputs."""
    axes = ("layers", *["embed"] * (len(shape) - 1))
    return ParamSpec(shape, axes, inputs=inputs, matrix=True, decay=True)


def experts(*shape: int) -> ParamSpec:
    """A stack of matrices that decay: layers first, then experts, then inputs and outputs."""
    return ParamSpec(shape, ("layers", "experts", "embed", "mlp"), matrix=True, decay=True)

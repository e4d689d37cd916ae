"""Derivatives in JAX, and parts of a pullback of `jax.vjp`: the only module that uses the parts of JAX's VJP objects.

A pullback holds two lists of arrays: values of arguments that the backward reads (`args_res`), and residuals that the
forward computed (`opaque_residuals`). JAX describes `args_res`, `saveable_args` and `in_nzs` in the docstring of
`jax.vjp` alone, and `opaque_residuals` nowhere, so a new JAX may change any of them.
`tests/pallas_kernels/test_vjp_parts.py` reports which. A function here raises `AttributeError` where a part is
missing, because assigning an attribute that JAX does not read would silently give wrong gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax


def custom_vjp[R](*static: int) -> Callable[[Callable[..., R]], jax.custom_vjp[R]]:
    """`jax.custom_vjp` whose arguments `static`, by index, have no derivative; type checkers see what it returns, which
    they do not of a `partial`."""
    return lambda function: jax.custom_vjp(function, nondiff_argnums=static)  # pyright: ignore[reportReturnType]


def vjp_without_arguments(
    function: Callable[..., Any], *arguments: Any, differentiated: tuple[bool, ...]
) -> tuple[Any, Any]:
    """`jax.vjp` of `function`, whose pullback holds no value of the `arguments`: `set_arguments` has to restore them.

    `differentiated` has a flag for each argument; the gradient of the others is zero and is not computed.
    """
    return jax.vjp(function, *arguments, saveable_args=False, in_nzs=differentiated)


def residuals_of(pullback: Any) -> list[jax.Array]:
    """The residuals that the forward computed, without values of arguments, in a fixed order."""
    _require(pullback, "opaque_residuals")
    return pullback.opaque_residuals


def set_residuals(pullback: Any, residuals: Sequence[jax.Array]) -> None:
    """Replace the residuals of `pullback` in place by others of the same shapes, in the order of `residuals_of`."""
    _require(pullback, "opaque_residuals")
    pullback.opaque_residuals = residuals


def set_arguments(pullback: Any, *arguments: Any) -> None:
    """Restore, in place, the values of all arguments of the function that `pullback` belongs to."""
    _require(pullback, "args_res")
    pullback.args_res = jax.tree.leaves(arguments)


def _require(pullback: Any, name: str) -> None:
    if not hasattr(pullback, name):
        raise AttributeError(f"the VJP objects of jax {jax.__version__} have no attribute {name}, which jaxpar needs")

"""What JAX's VJP objects have to be for `pallas_kernels.vjp_parts`; each failure states what a new JAX changed."""

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from pallas_kernels.vjp_parts import residuals_of, set_arguments, set_residuals, vjp_without_arguments

CHANGED = f"jax {jax.__version__} changed a part of its VJP objects (pallas_kernels/vjp_parts.py): "
X, W = jnp.array([0.5, -1.0, 2.0]), jnp.array([3.0, 1.0, -2.0])


def product(tree: dict[str, jax.Array], w: jax.Array) -> jax.Array:
    """Its backward reads both arguments (d sin(x) w = cos(x) w, and sin(x)), and its forward computes cos(x)."""
    return jnp.sin(tree["x"]) * w


def gradients(x: jax.Array, w: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    return np.cos(x) * w, np.sin(x)


def pullback_of_product() -> Any:
    return vjp_without_arguments(product, {"x": X}, W, differentiated=(True, True))[1]


def holds(values: Any, wanted: Any) -> bool:
    return any(isinstance(value, jax.Array) and np.array_equal(value, wanted) for value in jax.tree.leaves(values))


def test_args_res_has_an_entry_for_each_leaf_of_the_arguments_and_no_value() -> None:
    pullback = pullback_of_product()
    assert len(pullback.args_res) == 2, (
        f"{CHANGED}args_res of a function of two arrays has {len(pullback.args_res)} entries, expected one for each"
    )
    kept = [value for value in (X, W) if holds((pullback.args_res, pullback.opaque_residuals), value)]
    assert not kept, f"{CHANGED}with saveable_args=False a pullback still holds the value of an argument"


def test_a_pullback_whose_args_res_is_not_restored_is_refused() -> None:
    pullback, refusal = pullback_of_product(), "nothing"
    try:
        pullback(jnp.ones(3))
    except ValueError as error:
        refusal = str(error)
    assert "args_res" in refusal, (
        f"{CHANGED}without its arguments a pullback made with saveable_args=False raises {refusal}, expected a "
        "ValueError that names args_res"
    )


def test_args_res_is_what_the_backward_reads() -> None:
    pullback = pullback_of_product()
    set_arguments(pullback, {"x": X}, 2 * W)
    d_tree, d_w = pullback(jnp.ones(3))
    wanted, _ = gradients(X, 2 * W)
    np.testing.assert_allclose(
        d_tree["x"], wanted, rtol=1e-6, err_msg=f"{CHANGED}the backward does not read what is assigned to args_res"
    )
    np.testing.assert_allclose(d_w, np.sin(X), rtol=1e-6, err_msg=f"{CHANGED}args_res and residuals are mixed up")


def test_opaque_residuals_are_what_the_forward_computed_and_the_backward_reads() -> None:
    pullback = pullback_of_product()
    residuals = residuals_of(pullback)
    for value in (np.cos(X), np.sin(X)):
        assert any(np.allclose(value, found) for found in residuals), (
            f"{CHANGED}opaque_residuals has no {value} among {residuals}"
        )
    set_arguments(pullback, {"x": X}, W)
    set_residuals(pullback, [2 * residual for residual in residuals])
    d_tree, d_w = pullback(jnp.ones(3))
    for found, wanted in zip((d_tree["x"], d_w), gradients(X, W), strict=True):
        np.testing.assert_allclose(
            found, 2 * wanted, rtol=1e-6,
            err_msg=f"{CHANGED}the backward does not read what is assigned to opaque_residuals",
        )  # fmt: skip


def test_in_nzs_leaves_out_the_gradient_of_an_argument() -> None:
    _, pullback = vjp_without_arguments(product, {"x": X}, W, differentiated=(False, True))
    assert not any(np.allclose(np.cos(X), found) for found in residuals_of(pullback)), (
        f"{CHANGED}with in_nzs False for x, residuals of its gradient are still computed"
    )
    set_arguments(pullback, {"x": X}, W)
    d_tree, d_w = pullback(jnp.ones(3))
    assert not np.any(d_tree["x"]), f"{CHANGED}with in_nzs False for x, its gradient is {d_tree['x']}, expected zero"
    np.testing.assert_allclose(d_w, np.sin(X), rtol=1e-6, err_msg=f"{CHANGED}in_nzs leaves out another argument")


def test_the_pullback_of_shapes_takes_the_residuals_of_values() -> None:
    """The layer loop keeps residuals in one program loop and makes the pullback again from shapes in another."""

    def step(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        make = lambda x, w: vjp_without_arguments(product, {"x": x}, w, differentiated=(True, True))
        residuals = residuals_of(make(x, w)[1])
        _, pullback = jax.eval_shape(make, x, w)
        like, found = ([(a.shape, a.dtype) for a in arrays] for arrays in (residuals_of(pullback), residuals))
        assert like == found, f"{CHANGED}opaque_residuals of shapes are {like}, and of values {found}"
        set_arguments(pullback, {"x": x}, w)
        set_residuals(pullback, residuals)
        d_tree, d_w = pullback(jnp.ones(3))
        return d_tree["x"], d_w

    for found, wanted in zip(jax.jit(step)(X, W), gradients(X, W), strict=True):
        np.testing.assert_allclose(
            found, wanted, rtol=1e-6, err_msg=f"{CHANGED}a pullback made by jax.eval_shape is another one"
        )


def test_a_result_that_is_a_residual_is_the_same_object() -> None:
    """cuDNN's forward gives its output, which the backward reads, another name than the other residuals."""

    def forward(x: jax.Array) -> jax.Array:
        out, pullback = jax.vjp(lax.exp, x)
        assert any(residual is out for residual in residuals_of(pullback)), (
            f"{CHANGED}a result that the backward reads is not the same object among opaque_residuals"
        )
        return out

    jax.make_jaxpr(forward)(X)


@pytest.mark.parametrize("call", [residuals_of, lambda it: set_residuals(it, []), lambda it: set_arguments(it, X)])
def test_a_part_that_is_missing_is_one_sentence(call: Any) -> None:
    with pytest.raises(AttributeError, match=r"the VJP objects of jax .* have no attribute"):
        call(object())


def test_no_other_module_uses_the_parts() -> None:
    root = Path(__file__).parents[2]
    parts = re.compile(r"\b(args_res|opaque_residuals|structured_residuals|saveable_args|in_nzs|out_nzs)\b")
    files = [file for folder in ("jaxpar", "pallas_kernels") for file in sorted((root / folder).rglob("*.py"))]
    users = [file.relative_to(root).as_posix() for file in files if parts.search(file.read_text())]
    assert users == ["pallas_kernels/vjp_parts.py"]

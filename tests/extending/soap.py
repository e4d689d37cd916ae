"""SOAP (Vyas et al. 2024, arXiv:2409.11321, algorithm 3): Adam in the eigenbasis of a matrix's Gram matrices.

Registered as `optimizer.name: soap`, from outside jaxpar. `optimizer.options` has its settings.
"""

from dataclasses import dataclass
from math import prod

import jax
import jax.numpy as jnp
from jax import lax

from jaxpar.config import UserError
from jaxpar.config.mappings.optimizers import AdamWOptions
from jaxpar.config.parts import OPTIMIZERS, Optimizer
from jaxpar.mesh.matrices import gather_matrices, scatter_matrices
from jaxpar.optim.adamw import adamw
from jaxpar.optim.rule import ArraySpec, Rule, RuleRequest

OPTIMIZERS["soap"] = Optimizer("tests.extending.soap:soap", "tests.extending.soap:Options")


@dataclass(frozen=True)
class Options(AdamWOptions):
    """`optimizer.options` of SOAP: those of AdamW, and two more."""

    every: int = 10
    """Updates between refreshes of the bases."""
    gram_decay: float = 0.95
    """Decay of the Gram matrices."""


def soap(request: RuleRequest) -> Rule:
    """SOAP for the stacked matrices of the layers, AdamW for all else.

    Adam's nu is that of the gradient in the bases, its mu that of the gradient. Until the first refresh the bases are
    the identity, and a refresh is one step of orthogonal iteration: the QR decomposition of Gram matrix times basis.
    Ranks that share a weight exchange layers for dims, so that each has whole matrices of its share of the layers.
    """
    options, spec = request.options(Options), request.spec
    if options.every < 1:
        raise UserError(f"optimizer.options.every: expected at least 1, got {options.every}")
    if not spec.matrix:
        return adamw(request)
    stack, dims = spec.stack, tuple(range(spec.stack, len(spec.shape)))
    rows, columns = prod(spec.shape[stack:][: spec.inputs]), prod(spec.shape[stack:][spec.inputs :])

    def square(size: int) -> ArraySpec:
        """A square matrix for each of the weight's, whose rows are split over all ranks that share the weight."""
        return ArraySpec((*spec.shape[:stack], size, size), (*((dim,) for dim in range(stack)), dims, ()))

    arrays = {
        "mu": request.like_weight(signed=True), "nu": request.like_weight(signed=False), "left_gram": square(rows),
        "right_gram": square(columns), "left_basis": square(rows), "right_basis": square(columns),
    }  # fmt: skip

    @jax.default_matmul_precision("float32")
    def direction(gradient, weight, state, step, arguments):
        beta1, beta2, decay = (arguments.options[name] for name in ("beta1", "beta2", "gram_decay"))
        local = state | {"mu": beta1.mean(state["mu"], gradient), "gradient": gradient}
        layouts = {name: array.partition(request.layout) for name, array in arrays.items()}
        whole = {name: gather_matrices(x, layouts.get(name, request.layout), stack) for name, x in local.items()}
        matrices = {name: x.reshape(-1, rows, columns) for name, x in whole.items() if name in ("gradient", "mu", "nu")}
        g = matrices["gradient"]

        left, right = decay.mean(whole["left_gram"], g @ g.mT), decay.mean(whole["right_gram"], g.mT @ g)
        basis = lambda old: jnp.where(step == 0, jnp.eye(old.shape[-1]), old)
        ql, qr = basis(whole["left_basis"]), basis(whole["right_basis"])

        corrected = lambda moment, beta: moment / (1 - beta.value ** (step + 1))
        nu = beta2.mean(matrices["nu"], jnp.square(ql.mT @ g @ qr))
        mu = corrected(ql.mT @ matrices["mu"] @ qr, beta1)
        update = ql @ (mu / (jnp.sqrt(corrected(nu, beta2)) + arguments.options["epsilon"].value)) @ qr.mT

        refreshed = lambda: (jnp.linalg.qr(left @ ql)[0], jnp.linalg.qr(right @ qr)[0])
        ql, qr = lax.cond((step + 1) % options.every == 0, refreshed, lambda: (ql, qr))
        new = {"nu": nu, "left_gram": left, "right_gram": right, "left_basis": ql, "right_basis": qr}

        def back(name, x):
            return scatter_matrices(x.reshape(whole[name].shape), layouts[name], gradient.shape[:stack])

        return back("mu", update), {name: back(name, x) for name, x in new.items()} | {"mu": local["mu"]}

    rotated = (rows, columns, rows), (rows, columns, columns)
    matmuls = [(1, rows, rows, columns), (1, columns, columns, rows), *((3, *sizes) for sizes in rotated)]
    refresh = [(2 / options.every, size, size, size) for size in (rows, columns)]  # a product, and about as much for QR
    return Rule(arrays, direction, "matrix", matmuls=(*matmuls, *refresh))

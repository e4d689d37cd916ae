"""The operations of a program (jaxpr), and those that it may not have where ranks branch.

Tracing a layer takes Python tens of milliseconds. `jax.jit(function, inline=True)` traces it once for each combination
of types of its arguments, and repeats it equation by equation, with the names and source lines of where it was traced.
"""

from __future__ import annotations

from collections.abc import Iterator

from jax.extend.core import Jaxpr, JaxprEqn, jaxprs_in_params

from jaxpar.config.errors import UserError


def equations(program: Jaxpr) -> Iterator[JaxprEqn]:
    """All equations of a program, including those of the programs inside it."""
    for equation in program.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)


def permutes(program: Jaxpr) -> bool:
    """Whether a program has a collective permute, which XLA matches with an unrelated one if some ranks skip it."""
    return any(equation.primitive.name == "ppermute" for equation in equations(program))


TYPE_ONLY = ("axis_index", "pcast", "pvary")
"""Primitives that name mesh axes without communication."""


def refuse_permutes(jaxpr: Jaxpr) -> None:
    """Raises `UserError` where a branch that ranks may skip has a collective permute, or one over the pipeline.

    XLA matches a permute that only some ranks reach with an unrelated one, and corrupts data silently. Group
    collectives are right: all members of a group are on one pipeline rank, and take the same branch.
    """
    for equation in equations(jaxpr):
        name, over = equation.primitive.name, equation.params.get("axis_name", equation.params.get("axes", ()))
        axes = [over] if isinstance(over, str) else [axis for axis in over or () if isinstance(axis, str)]
        if name == "ppermute" or ("pipe" in axes and name not in TYPE_ONLY):
            kind = "collective permutes" if name == "ppermute" else "collectives over the pipeline"
            raise UserError(
                f"parallel.pipe_ticks: branching needs layers without {kind}, and these have one over "
                f"{' and '.join(axes)}, which XLA would match with an unrelated one where ranks branch; expected "
                "uniform"
            )

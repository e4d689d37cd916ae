"""Collective permutes that only some ranks would reach."""

from __future__ import annotations

from jax.extend.core import Jaxpr

from jaxpar.config.errors import UserError
from jaxpar.mesh.tracing import equations

TYPE_ONLY = ("axis_index", "pcast", "pvary")
"""Primitives that name mesh axes without communication."""


def refuse_permutes(jaxpr: Jaxpr) -> None:
    """Raises `UserError` where a branch that ranks may skip has a collective permute, or one over the pipeline.

    XLA matches a permute that only some ranks reach with an unrelated one, and corrupts data silently. Group
    collectives are right: all members of a group are on one pipeline rank, and take the same branch.
    """
    for equation in equations(jaxpr):
        name, found = equation.primitive.name, equation.params.get("axis_name", equation.params.get("axes", ()))
        axes = [found] if isinstance(found, str) else [axis for axis in found or () if isinstance(axis, str)]
        if name == "ppermute" or ("pipe" in axes and name not in TYPE_ONLY):
            kind = "collective permutes" if name == "ppermute" else "collectives over the pipeline"
            raise UserError(
                f"parallel.pipe_ticks: branching needs layers without {kind}, and these have one over "
                f"{' and '.join(axes)}, which XLA would match with an unrelated one where ranks branch; expected "
                "uniform"
            )

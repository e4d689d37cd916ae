"""Programs (jaxprs) that are traced once and used many times.

Tracing a layer takes Python tens of milliseconds, and a pipeline's step uses each layer in every run of its ticks,
forward and backward. What has been traced is repeated equation by equation, which is several times faster, and keeps
the names and source lines of where it was traced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import jax
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, jaxpr_as_fun, jaxprs_in_params
from jaxtyping import PyTree

from jaxpar.config.errors import UserError


@dataclass(frozen=True, eq=False)
class Program:
    """A traced function, to be called with arguments of the types that it was traced with."""

    closed: ClosedJaxpr
    like: PyTree[jax.ShapeDtypeStruct]
    """Shapes and dtypes of its result."""

    def __call__(self, *arguments: PyTree) -> PyTree:
        """The function's result for `arguments`."""
        results = jaxpr_as_fun(self.closed)(*jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(self.like), results)


def traced(function: Callable[..., PyTree], *arguments: PyTree) -> Program:
    """`function` as a program, for arguments like these."""
    return Program(*jax.make_jaxpr(function, return_shape=True)(*arguments))


class TracedOnce:
    """A function that is traced once for each combination of types of its arguments, trees of arrays.

    It must not read arrays of an enclosing trace other than its arguments: they would not be the same the next time.
    """

    def __init__(self, function: Callable[..., PyTree]):
        self._function = function
        self._programs: dict[object, Program] = {}

    def program(self, *arguments: PyTree) -> Program:
        """The function as a program, for arguments like these."""
        leaves, structure = jax.tree.flatten(arguments)
        types = structure, tuple(map(jax.typeof, leaves))
        if types not in self._programs:
            program = traced(self._function, *arguments)
            outer = [const for const in program.closed.consts if isinstance(const, Tracer)]
            assert not outer, f"{self._function} reads arrays other than its arguments: {outer}"
            self._programs[types] = program
        return self._programs[types]

    def __call__(self, *arguments: PyTree) -> PyTree:
        """The function's result for `arguments`."""
        return self.program(*arguments)(*arguments)


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
        name, found = equation.primitive.name, equation.params.get("axis_name", equation.params.get("axes", ()))
        axes = [found] if isinstance(found, str) else [axis for axis in found or () if isinstance(axis, str)]
        if name == "ppermute" or ("pipe" in axes and name not in TYPE_ONLY):
            kind = "collective permutes" if name == "ppermute" else "collectives over the pipeline"
            raise UserError(
                f"parallel.pipe_ticks: branching needs layers without {kind}, and these have one over "
                f"{' and '.join(axes)}, which XLA would match with an unrelated one where ranks branch; expected "
                "uniform"
            )

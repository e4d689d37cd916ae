"""The work of a traced program: its operations, how often each runs, and the bytes that its collectives send."""

from collections import Counter
from collections.abc import Iterator
from math import prod
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.interpreters.partial_eval import dce_jaxpr
from jax.sharding import AxisType, Mesh

from jaxpar.mesh.axes import MESH_AXES


def mesh_of(**sizes: int) -> Mesh:
    """A mesh of all axes, of size 1 where not given, on the first virtual devices."""
    shape = tuple(sizes.get(axis, 1) for axis in MESH_AXES)
    devices = np.array(jax.devices()[: prod(shape)]).reshape(shape)
    return Mesh(devices, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def operations(function: Any, *arguments: Any) -> list[tuple[Any, int]]:
    """Every equation of `function` traced on `arguments`, loops and calls opened, and how often it runs.

    What no result needs is left out, as every compiler leaves it out.
    """
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    return list(_walk(dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0], 1))


def _walk(jaxpr: Jaxpr, times: int) -> Iterator[tuple[Any, int]]:
    for equation in jaxpr.eqns:
        inner = [part for value in equation.params.values() for part in _jaxprs(value)]
        assert equation.primitive.name != "while" or not inner, "how often a while loop runs is not known"
        repeated = times * equation.params["length"] if equation.primitive.name == "scan" else times
        for part in inner:
            yield from _walk(part, repeated)
        if not inner:
            yield equation, times


def _jaxprs(value: Any) -> Iterator[Jaxpr]:
    if isinstance(value, ClosedJaxpr):
        yield value.jaxpr
    elif isinstance(value, Jaxpr):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _jaxprs(part)


SENT = {
    "all_gather": lambda x, n: x * (n - 1), "reduce_scatter": lambda x, n: x * (n - 1) // n,
    "psum_invariant": lambda x, n: 2 * x * (n - 1) // n, "pmax": lambda x, n: 2 * x * (n - 1) // n,
    "all_to_all": lambda x, n: x * (n - 1) // n, "ppermute": lambda x, n: x if n > 1 else 0,
}  # fmt: skip
"""Bytes that a device sends in a collective whose operand has x bytes on each of n ranks: what a ring sends, and no
algorithm sends less (Patarasuk and Yuan 2009). Of a permute: what a rank sends that sends at all."""


def sent_bytes(mesh: Mesh, function: Any, *arguments: Any) -> Counter[str]:
    """Bytes that one device sends in `function`, by kind of collective."""
    sent: Counter[str] = Counter()
    for equation, times in operations(function, *arguments):
        kind = equation.primitive.name
        axes = equation.params.get("axis_name", equation.params.get("axes", ()))
        axes = axes if isinstance(axes, tuple) else (axes,)
        if kind not in SENT:
            named = [axis for axis in axes if axis in MESH_AXES]
            assert not named or kind in ("axis_index", "pvary", "pcast"), f"{kind} over {named} has no formula"
            continue
        ranks = group_size(mesh, equation)
        sent[kind] += times * sum(SENT[kind](v.aval.size * v.aval.dtype.itemsize, ranks) for v in equation.invars)
    return +sent


def group_size(mesh: Any, equation: Any) -> int:
    """Ranks of a group of a collective."""
    if groups := equation.params.get("axis_index_groups"):
        return len(groups[0])
    axes = equation.params.get("axis_name", equation.params.get("axes", ()))
    return prod(mesh.shape[axis] for axis in (axes if isinstance(axes, tuple) else (axes,)))


def sent_by_groups(mesh: Mesh, function: Any, node_devices: int, *arguments: Any) -> dict[bool, int]:
    """Bytes that one device sends in collectives over all devices, by whether their groups cross nodes."""
    sent = {False: 0, True: 0}
    for equation, times in operations(function, *arguments):
        if equation.primitive.name not in SENT:
            continue
        groups = equation.params.get("axis_index_groups") or [range(mesh.size)]
        crosses = any(len({member // node_devices for member in group}) > 1 for group in groups)
        size = sum(v.aval.size * v.aval.dtype.itemsize for v in equation.invars)
        sent[crosses] += times * SENT[equation.primitive.name](size, len(groups[0]))
    return sent

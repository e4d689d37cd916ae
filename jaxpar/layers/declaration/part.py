"""The declaration of a part of a layer: its weights, its named activations and its operations, in order.

Everything that describes layers is derived from it: parameter counts and model FLOPs (`jaxpar.layers.counting`,
`jaxpar.model.flops`), bytes and costs of activations (`jaxpar.memory`), what remat presets save, the planner's seconds,
and the groups of matmuls whose backward a pipeline splits. Modules create their weights from it. `docs/extending.md`
shows how to write one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from jaxpar.layers.declaration.activations import Activation, Dims
from jaxpar.mesh.parameters import ParamSpec


class Traffic(NamedTuple):
    """Numbers that elementwise work reads and writes for each number of its output."""

    forward: float
    backward: float


RESIDUAL, NORM = Traffic(3, 3), Traffic(2, 4)
"""Adding to the residual stream: two reads, one write. A norm of it: one kernel reads and writes once."""


@dataclass(frozen=True)
class Matmuls:
    """Matmuls of one input with some of the part's matrices: linear in both, so that a backward can be split there."""

    name: str
    weights: tuple[str, ...]
    """Matrices of the part; `ParamSpec.inputs` of their dims are summed over. Each is a weight, or the product of two
    (`factor_names`)."""
    inward: bool
    """Into the part, after a gather of the sequence; else back out, before a scatter of the partial sums."""
    input: str = ""
    """The activation that is multiplied; inward, the layer sets it."""
    outputs: tuple[str, ...] = ()
    """Inward, the activation that each matrix makes; outward, the layer sets it, if there is one."""
    rotated: tuple[str, ...] = ()
    """The activations among `outputs` that rotary embeddings rotate."""
    between: bool = False
    """Inward, each tensor rank multiplies its part of the sequence with whole matrices, and nothing is gathered."""
    by_head: bool = False
    """Whether `outputs` are laid out for an attention kernel."""
    adds: bool = False
    """Outward, whether the sums are added to the residual stream immediately."""
    exact: bool = False
    """Whether no recipe quantizes them: routers, and projections to one number for each head."""


@dataclass(frozen=True)
class Elementwise:
    """An elementwise operation, bound by memory bandwidth."""

    output: str
    """The activation that it makes; for the last in a layer, which no backward needs, only a name."""
    traffic: Traffic | None = None
    """None if another operation's kernel does the work: recomputing it then costs nothing."""
    sends_rows: bool = False
    """Whether rows are sent to the ranks of the matrices that a router chooses for them."""


@dataclass(frozen=True)
class Core:
    """Attention itself: 4 FLOPs for each number of a query and each key that it attends to."""

    query: str
    keys: tuple[str, ...]
    """Activations of all tokens, which context ranks exchange."""
    outputs: tuple[str, ...]
    name: str = "attention"


@dataclass(frozen=True)
class Recurrence:
    """A state that is carried along a row: matmuls whose work grows with its tokens, not with pairs of them."""

    outputs: tuple[str, ...]
    flops: int
    """FLOPs of a token, forward, over all heads, as a recurrence; the backward takes twice as many."""
    chunked: int
    """The same of the form that runs, in chunks of tokens and float32."""
    mapped: int
    """Bytes of the map from the state before a context rank's tokens to that behind them, of a row, over all heads."""
    made: int
    """Bytes of a state likewise."""


type Operation = Matmuls | Elementwise | Core | Recurrence


class Weights(dict[str, ParamSpec]):
    """The weights of a part by name; with a hash, as everything declared has one, so it is never changed."""

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return hash(tuple(self.items()))

    @property
    def size(self) -> int:
        """The number of weights of the part."""
        return sum(spec.size for spec in self.values())


@dataclass(frozen=True)
class Term:
    """A product of two weights, times a factor, that is added to a matrix."""

    matrix: str
    first: str
    second: str
    scale: float


@dataclass(frozen=True)
class Part:
    """Attention or a feed-forward: from the residual stream, or its norm, to what is added to it."""

    name: str
    """Name of its weights within those of a layer."""
    weights: Weights
    activations: tuple[Activation, ...]
    operations: tuple[Operation, ...]
    """Operations in order; a group of matmuls inward is the first, one outward the last."""
    terms: tuple[Term, ...] = ()
    chosen: int = 1
    """Matrices of each routed weight that a token uses."""
    norms: tuple[bool, bool] | None = None
    """Whether it has a norm before it, and one after it; None leaves it to `model.norm_placement`."""
    dims: tuple[tuple[str, int], ...] = ()
    """Sizes of the logical dims that its activations alone have."""

    def __post_init__(self) -> None:
        first, *_, last = self.groups
        assert first.inward and not last.inward, "a part begins and ends with a group of matmuls"
        assert first is self.operations[0] and last is self.operations[-1], "its operations lie between"
        made = [name for operation in self.operations for name in activations_of(operation)]
        assert sorted(made) == sorted(one.name for one in self.activations), f"{self.name}: each is made once"
        assert all(name in self.weights for name in self.factors_of(*self.matrix_names)), self.name

    @cached_property
    def groups(self) -> tuple[Matmuls, ...]:
        """Its matmuls by their common input."""
        return tuple(one for one in self.operations if isinstance(one, Matmuls))

    @property
    def last(self) -> str:
        """The name of the last matrix."""
        return self.groups[-1].weights[-1]

    @cached_property
    def routed(self) -> bool:
        """Whether a router chooses among some of its matrices."""
        return any(spec.routed for spec in self.matrices)

    def is_routed(self, group: Matmuls) -> bool:
        """Whether a router chooses among the matrices of one of its groups."""
        return any(self.weights[name].routed for name in self.factors_of(*group.weights))

    @property
    def dense_groups(self) -> tuple[Matmuls, ...]:
        """Its groups but exact ones and those of matrices among which a router chooses."""
        return tuple(one for one in self.groups if not one.exact and not self.is_routed(one))

    def active_size(self, spec: ParamSpec) -> int:
        """Elements of a matrix that a token is multiplied with."""
        return spec.size // spec.routed * self.chosen if spec.routed else spec.size

    @property
    def matrix_names(self) -> list[str]:
        """Names of the matrices of its groups."""
        return [name for group in self.groups for name in group.weights]

    @cached_property
    def matrices(self) -> tuple[ParamSpec, ...]:
        """The weights that tokens are multiplied with."""
        return tuple(self.weights[name] for name in self.factors_of(*self.matrix_names))

    def is_factored(self, matrix: str) -> bool:
        """Whether a matrix of its groups is the product of two weights."""
        return matrix not in self.weights

    @property
    def factored_names(self) -> list[str]:
        """Names of its matrices that are products of two weights."""
        return [name for name in self.matrix_names if self.is_factored(name)]

    def term(self, matrix: str) -> Term | None:
        """The term that is added to a matrix of its groups, if there is one."""
        return next((term for term in self.terms if term.matrix == matrix), None)

    def factors_of(self, *matrices: str) -> list[str]:
        """Names of the weights of matrices of its groups: one of each, or its two factors."""
        return [one for name in matrices for one in (factor_names(name) if self.is_factored(name) else (name,))]


@dataclass(frozen=True)
class Layer:
    """All of a layer: its parts with their norms and the residual stream around them."""

    parts: tuple[Part, ...]
    """The mixer and the feed-forward."""
    norms: Mapping[str, Weights]
    """The weights of its norms, and of what is around its parts as they are, by name."""
    activations: tuple[Activation, ...]
    """Activations in the order of the forward, the layer's input first."""
    operations: tuple[tuple[Part, Operation], ...]
    """Operations in order, each with the part that it belongs to, or whose input or output it makes."""

    @property
    def weights(self) -> dict[str, Weights]:
        """Weights of each part and norm, by name."""
        return {part.name: part.weights for part in self.parts} | dict(self.norms)

    @cached_property
    def matrices(self) -> tuple[ParamSpec, ...]:
        """The weights that tokens are multiplied with."""
        return tuple(spec for part in self.parts for spec in part.matrices)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its activations."""
        return tuple(one.name for one in self.activations)

    @property
    def routed(self) -> bool:
        """Whether a router chooses among some of its matrices."""
        return any(part.routed for part in self.parts)

    @property
    def feed_forward(self) -> Part:
        """The part behind the mixer, whatever its name."""
        return next(part for part in reversed(self.parts) if part.norms is None)


def activations_of(operation: Operation) -> tuple[str, ...]:
    """Names of the activations that an operation makes."""
    return (operation.output,) if isinstance(operation, Elementwise) else operation.outputs


def factor_names(matrix: str) -> tuple[str, str]:
    """The names of the two factors of a matrix: `up_a` and `up_b` of `up`."""
    return f"{matrix}_a", f"{matrix}_b"


def matrix(shape: tuple[int, ...], axes: Dims, **options: Any) -> ParamSpec:
    """A weight that tokens are multiplied with."""
    return ParamSpec(shape, axes, matrix=True, decay=True, **options)


def vector(shape: tuple[int, ...], axes: Dims, init: Any = "zeros") -> ParamSpec:
    """A bias or the scale of a norm."""
    return ParamSpec(shape, axes, init=init)

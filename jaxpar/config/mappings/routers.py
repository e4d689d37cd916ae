"""The mapping `model.experts.router_options`: settings of each router."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from jaxpar.config.bounds import SHARE, WIDTH, at_least
from jaxpar.config.parts import NoOptions


@dataclass(frozen=True)
class InGroups:
    """Neighbouring experts in groups, of which a token uses some; null means that it may use any."""

    groups: Annotated[int, at_least(1)] | None = None
    groups_per_token: Annotated[int, at_least(1)] | None = None


@dataclass(frozen=True)
class Scaled(InGroups):
    """And how many of a group's largest probabilities are added to rank it; and a factor of the weights."""

    group_best: Annotated[int, at_least(1)] = 1
    scale: Annotated[float, at_least(0, 1e30)] = 1.0


@dataclass(frozen=True)
class Biased(InGroups):
    """And a factor of the weights; the step by which each update moves the biases towards an equal load; and what is
    added to the sum of a token's sigmoids, by which they are divided."""

    scale: Annotated[float, at_least(0, 1e30)] = 1.0
    bias_rate: Annotated[float, at_least(0, 1e30)] = 0.001
    epsilon: Annotated[float, SHARE] = 0.0


@dataclass(frozen=True)
class Cosine(Scaled):
    """And the width in which tokens and experts are compared; null means half of `count`."""

    projection: Annotated[int, at_least(1, WIDTH)] | None = None


@dataclass(frozen=True)
class Groups:
    """The number of groups of neighbouring experts."""

    groups: Annotated[int, at_least(1)]


@dataclass(frozen=True)
class Annealed:
    """Temperatures at the first step, and after `anneal_steps` and in evaluations; the share of the weights from which
    an expert is used."""

    temperature: Annotated[float, at_least(1e-6, 1e30)] = 2.0
    last_temperature: Annotated[float, at_least(1e-6, 1e30)] = 0.3
    anneal_steps: Annotated[int, at_least(1)] = 1000
    threshold: Annotated[float, SHARE] = 0.001


@dataclass(frozen=True)
class Jitter:
    """A logit that is less than the largest one by more than twice this share of the larger of its size and that one is
    left out of the probabilities."""

    jitter: Annotated[float, SHARE] = 0.01


@dataclass(frozen=True)
class Forced:
    """Leave to let a token's experts depend on later tokens."""

    force: bool = False


ROUTERS: dict[str, type] = {
    "top_k_softmax": Scaled,
    "softmax_top_k": Scaled,
    "switch": Scaled,
    "gshard": NoOptions,
    "noisy_top_k": NoOptions,
    "sigmoid": Biased,
    "biased_softmax": Biased,
    "sigmoid_top_k": NoOptions,
    "k_top_1": NoOptions,
    "hash": NoOptions,
    "sam": Groups,
    "cosine": Cosine,
    "sparse_mixer": Jitter,
    "dense_to_sparse": Annealed,
    "base": NoOptions,
    "expert_choice": Forced,
}
"""The values of `model.experts.router`, each with its options; the routers are in
`jaxpar.layers.experts.routers.ROUTERS`."""

"""The declaration of experts: weights, named activations, groups of matmuls and elementwise work."""

from __future__ import annotations

from dataclasses import replace

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.schema import ModelConfig
from jaxpar.layers.declaration.activations import Activation, Dims
from jaxpar.layers.declaration.part import Elementwise, Matmuls, Operation, Part, Traffic, Weights, matrix, vector
from jaxpar.layers.experts.rounds import INPUT
from jaxpar.layers.experts.routers import ROUTERS, options_of, projection_of
from jaxpar.layers.feed_forward.base import FeedForward
from jaxpar.mesh.parameters import ParamSpec

IN, OUT = "experts_in", "experts_out"
"""The groups of matmuls of the routed experts."""

ROUTED = ("routed", "expert_mlp")
"""Dims of a hidden activation of the routed experts: rows for each token, hidden width."""
SHARED = ("shared_mlp",)
"""Dims of a hidden activation of the shared ones."""
ROUTER_NORM, ROUTED_NORM, EXPERT_SCALE = "router_norm", "routed_norm", "expert_scale"
"""Weights of `model.experts.norms`: scales of the norms of the inputs of the router and of the routed experts, and a
factor of the weight of each expert."""
NORMS_OF_OUTPUTS = ("post_routed_norm", "post_shared_norm")
"""Further weights of it: scales of the norms of what the routed experts and the shared one make."""
SHARED_ROUTER = "shared_router"
"""The router of the shared ones: a logit of each token, whose sigmoid weighs their output."""


def width_of(model: ModelConfig) -> int:
    """Hidden width of an expert."""
    assert model.experts is not None, "a model with experts"
    return model.mlp if model.experts.width is None else model.experts.width


def declare(model: ModelConfig, feed_forward: type[FeedForward]) -> Part:
    """The part: a router, the matrices of all experts stacked, and those of the shared ones side by side."""
    experts = model.experts
    assert experts is not None, "a model with experts"
    inward = feed_forward.routed_inputs
    gated = "gate" in inward
    routers = tuple(name for name in ("router", "noise") if name in (weights := _weights(model, experts, inward)))
    # Rows are read and written when they are sent; what sorts them by expert counts with the products.
    sent = Elementwise(INPUT, traffic=Traffic(2, 2), sends_rows=True)
    hidden = Matmuls(IN, inward, inward=True, outputs=tuple(f"expert_{name}" for name in inward))
    activations = [Activation(INPUT, ("received", "embed")), *_hidden("expert", ROUTED, inward)]
    operations: list[Operation] = [hidden, sent, *_non_linear("expert", gated)]
    if routers:
        logits = tuple(f"{name}_logits" for name in routers)
        of_logits = [Activation(name, ("experts",), between=True, float32=True) for name in logits]
        first = [Matmuls("routers", routers, inward=True, outputs=logits, exact=True)]
        if ROUTERS[experts.router].cosine:
            of_logits = [Activation("router_projected", ("projection",), between=True, float32=True), *of_logits]
            project = Matmuls(
                "router_projection", ("projection",), inward=True, outputs=("router_projected",), exact=True
            )
            first = [project, replace(first[0], input="router_projected")]
        activations = [*of_logits, *activations]
        operations = [*first, sent, replace(hidden, input=INPUT), *_non_linear("expert", gated)]
    if experts.shared_router:
        activations.append(Activation(f"{SHARED_ROUTER}_logits", (SHARED_ROUTER,), between=True, float32=True))
        operations.append(
            Matmuls(SHARED_ROUTER, (SHARED_ROUTER,), inward=True, outputs=(f"{SHARED_ROUTER}_logits",), exact=True)
        )
    if experts.shared:
        names = tuple(f"shared_{name}" for name in inward)
        activations += _hidden("shared", SHARED, inward)
        operations += [Matmuls("shared_in", names, inward=True, outputs=names), *_non_linear("shared", gated)]
        operations += [Matmuls("shared_out", ("shared_down",), inward=False, input="shared_hidden")]
    operations += [Matmuls(OUT, ("down",), inward=False, input="expert_hidden")]
    width = width_of(model)
    dims = [
        ("experts", experts.count),
        ("expert_mlp", width),
        ("shared_mlp", experts.shared * width),
        (SHARED_ROUTER, 1),
    ]
    dims += [("projection", projection_of(experts))] if ROUTERS[experts.router].cosine else []
    return Part("mlp", weights, tuple(activations), tuple(operations), chosen=experts.per_token, dims=tuple(dims))


def _hidden(of: str, dims: Dims, inward: tuple[str, ...]) -> list[Activation]:
    """The activations inside a feed-forward: outputs of matmuls, and what elementwise work makes of them."""
    cheap = ("activated", "hidden") if len(inward) > 1 else ("hidden",)
    made = [Activation(f"{of}_{name}", dims) for name in inward]
    return made + [Activation(f"{of}_{name}", dims, cheap=True) for name in cheap]


def _non_linear(of: str, gated: bool) -> list[Operation]:
    if not gated:
        return [Elementwise(f"{of}_hidden", traffic=Traffic(2, 3))]
    hidden = Elementwise(f"{of}_hidden", traffic=Traffic(3, 5))
    return [Elementwise(f"{of}_activated"), hidden]


def _weights(model: ModelConfig, experts: ExpertsConfig, inward: tuple[str, ...]) -> Weights:
    count, embed, width = experts.count, model.embed, width_of(model)
    back = model.init_scale / (2 * model.layers) ** 0.5
    kind, weights = ROUTERS[experts.router], {}
    if kind.cosine:
        width_of_cosine = projection_of(experts)
        weights["projection"] = ParamSpec((embed, width_of_cosine), ("embed", "rank"), scale=embed**-0.5, decay=True)
        weights["router"] = ParamSpec((width_of_cosine, count), ("rank", "router"), scale=model.init_scale, decay=True)
        weights["temperature"] = ParamSpec((1,), ("router",), init="zeros")
    elif kind.learned:
        weights["router"] = ParamSpec((embed, count), ("embed", "router"), scale=model.init_scale, decay=True)
    if kind.noise:
        weights["noise"] = ParamSpec((embed, count), ("embed", "router"), init="zeros", decay=True)
    if kind.bias:
        weights["bias"] = ParamSpec((count,), ("router",), init="zeros", balance_rate=options_of(experts).bias_rate)
    if model.mlp_bias and kind.learned and not kind.cosine:
        weights["router_bias"] = vector((count,), ("router",))
    if experts.norms:
        weights |= {name: vector((embed,), ("norm",), "ones") for name in (ROUTER_NORM, ROUTED_NORM, *NORMS_OF_OUTPUTS)}
        weights[EXPERT_SCALE] = vector((count,), ("router",), "ones")
    for name in inward:
        weights[name] = matrix((count, embed, width), ("experts", "embed", "mlp"), scale=model.init_scale)
    weights["down"] = matrix((count, width, embed), ("experts", "mlp", "embed"), scale=back)
    if model.mlp_bias:
        weights |= {f"{name}_bias": vector((count, width), ("experts", "mlp")) for name in inward}
        weights["down_bias"] = vector((count, embed), ("experts", "norm"))
    return Weights(weights | (_shared_weights(model, experts, inward) if experts.shared else {}))


def _shared_weights(model: ModelConfig, experts: ExpertsConfig, inward: tuple[str, ...]) -> dict[str, ParamSpec]:
    """The matrices of the shared experts, and their router."""
    embed, back = model.embed, model.init_scale / (2 * model.layers) ** 0.5
    wide = (embed, experts.shared * width_of(model))
    weights = {f"shared_{name}": matrix(wide, ("embed", "mlp"), scale=model.init_scale) for name in inward}
    if experts.shared_router:
        weights[SHARED_ROUTER] = ParamSpec((embed, 1), ("embed", "router"), scale=model.init_scale, decay=True)
    weights["shared_down"] = matrix(wide[::-1], ("mlp", "embed"), scale=back)
    if model.mlp_bias:
        weights |= {f"shared_{name}_bias": vector(wide[1:], ("mlp",)) for name in inward}
        weights["shared_down_bias"] = vector((embed,), ("norm",))
    return weights

"""Experts in float64, written from the papers: every expert computes every token, and nothing is exchanged.

Weights as in `decoder64`, with those of a layer's feed-forward: `mlp.router [L, E, N]` of N experts, `bias [L, N]`,
`up`/`gate [L, N, E, F]`, `down [L, N, F, E]`, and of the shared ones `shared_up`, `shared_gate`, `shared_down`.
"""

import math
from collections.abc import Mapping
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float64, Int

from tests.reference import decoder64, feed_forward64, norms64
from tests.reference.options import Options, complete
from tests.reference.tree import Tree

PLAIN = {"xla_backend_optimization_level": 0}
"""Compiling takes far longer than running what the tests ask."""


def route(
    logits: Float64[Array, "tokens experts"], ids: Int[Array, " tokens"], bias: Any, options: Mapping[str, Any]
) -> tuple[Float64[Array, "tokens experts"], Any]:
    """(the weight of each expert, 0 if it is not chosen; the statistics whose means the balance loss takes)."""
    options = {"groups": None, "group_best": 1, "scale": 1.0, **options, **options.get("router_options", {})}
    router, k, count = options["router"], options["per_token"], options["count"]
    tokens = jnp.arange(len(logits))
    if router == "hash":
        x = jnp.asarray(ids).astype(jnp.uint32)
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
            x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
        picked = [
            jnp.arange(count) == ((x % np.uint32(count)).astype(int)[:, None] + step) % count for step in range(k)
        ]
        return sum(one.astype(logits.dtype) for one in picked) / k, None
    exponentials = jnp.exp(logits - logits.max(axis=1, keepdims=True))
    softmax = exponentials / exponentials.sum(axis=1, keepdims=True)
    if router == "k_top_1":
        groups = exponentials.reshape(len(logits), k, -1)
        within = (groups / groups.sum(axis=2, keepdims=True)).reshape(logits.shape)
        best = within.reshape(groups.shape).argmax(axis=2)
        picked = (jnp.arange(groups.shape[2]) == best[:, :, None]).reshape(logits.shape)
        return jnp.where(picked, within, 0), within / k
    if router == "sparse_mixer":
        weights, rest = jnp.zeros(logits.shape), logits
        for _ in range(2):
            best, first = rest.max(axis=1, keepdims=True), jnp.arange(count) == rest.argmax(axis=1)[:, None]
            near = (best - logits) / jnp.maximum(jnp.abs(logits), best) <= 2 * options["jitter"]
            gates = jnp.where(near, jnp.exp(rest - best), 0)
            weights += jnp.where(first, gates / gates.sum(axis=1, keepdims=True), 0)
            rest = jnp.where(first, -jnp.inf, rest)
        return weights, softmax
    if router == "expert_choice":
        real = options["counts"]
        ranked = -jax.lax.reduce_precision(softmax, 8, 12)
        best = jnp.argsort(jnp.where(real[:, None] > 0, ranked, jnp.inf), axis=0)
        rank = jnp.argsort(best, axis=0)
        return jnp.where((rank < k * real.sum() // count) & (real[:, None] > 0), softmax, 0), None
    if router == "sam":
        of_groups = softmax.reshape(len(logits), options["groups"], -1).sum(axis=2)
        best = of_groups.argmax(axis=1)
        inside = jnp.arange(count) // (count // options["groups"]) == best[:, None]
        order = jnp.argsort(jnp.where(inside, -softmax, jnp.inf), axis=1)[:, :k]
        picked = jnp.zeros(logits.shape, bool).at[tokens[:, None], order].set(True)
        least = jnp.where(picked, softmax, jnp.inf).min(axis=1, keepdims=True)
        above = jnp.where(inside, 0, jnp.maximum(softmax - least, 0)).sum(axis=1)
        return jnp.where(picked, softmax, 0), (softmax, above)
    scores = 1 / (1 + jnp.exp(-logits)) if router in ("sigmoid", "sigmoid_top_k") else softmax
    biased = router in ("sigmoid", "biased_softmax")
    ranked = scores + bias if biased else logits
    if options["groups"]:
        best_of = 2 if biased else options["group_best"]
        rank = ranked if biased else softmax
        best = jnp.sort(rank.reshape(len(logits), options["groups"], -1), axis=2)[:, :, -best_of:].sum(axis=2)
        kept = jnp.argsort(-best, axis=1)[:, : options["groups_per_token"]]
        of_expert = jnp.arange(count) // (count // options["groups"])
        ranked = jnp.where((of_expert[:, None] == kept[:, None, :]).any(axis=2), ranked, -jnp.inf)
    order = jnp.argsort(-ranked, axis=1)[:, :k]
    picked = jnp.zeros(logits.shape, bool).at[tokens[:, None], order].set(True)
    if router in ("softmax_top_k", "switch", "cosine"):
        return options["scale"] * jnp.where(picked, softmax, 0), softmax
    chosen = jnp.where(picked, scores, 0)
    if router == "sigmoid_top_k":
        return chosen, scores / scores.sum(axis=1, keepdims=True)
    weights = options["scale"] * chosen / (chosen.sum(axis=1, keepdims=True) + options.get("epsilon", 0.0))
    if router == "gshard":
        first = (jnp.arange(count) == order[:, :1]).astype(logits.dtype)
        return weights, (first, softmax)
    return weights, scores / scores.sum(axis=1, keepdims=True)


def balance(weights: Array, statistics: Any, counts: Array, options: Mapping[str, Any]) -> Array:
    """The loss that `balance_loss` weighs, over the tokens that are routed."""
    if statistics is None:
        return jnp.zeros(())
    tokens, alignment = jnp.maximum(counts.sum(), 1), 0.0
    if options["router"] == "gshard":
        first, softmax = statistics
        return jnp.mean((counts @ first) / tokens * (counts @ softmax) / tokens)
    options = {**options, **options.get("router_options", {})}
    if options["router"] == "sam":
        statistics, above = statistics
        alignment = counts @ above / tokens
    shares = counts @ (weights > 0) / (tokens * options["per_token"])
    return alignment + options["count"] * jnp.sum(shares * (counts @ statistics) / tokens)


def experts(
    x: Array, tree: Tree, options: Options, batch: Mapping[str, Array], stream: Array | None = None
) -> tuple[Array, Array, Array]:
    """(the output, the auxiliary losses times the tokens that are routed, the choices of each expert). With norms of
    their tree (Gemma 4), the router and the routed experts read the residual `stream`."""
    flat, counts = x.reshape(-1, x.shape[-1]), (batch["segments"].ravel() > 0).astype(x.dtype)
    chosen: Mapping[str, Any] = dict(options["experts"]) | {"counts": counts}
    normed = lambda x, name: norms64.rms_norm(x, norms64.factors(tree[name], options), options["norm_epsilon"])
    routed = of_router = flat
    if chosen.get("norms"):
        routed = normed(stream.reshape(flat.shape), "routed_norm")
        of_router = norms64.rms_norm(stream.reshape(flat.shape), tree["router_norm"], options["norm_epsilon"])
        of_router = of_router / math.sqrt(options["embed"])
    logits = (
        of_router @ tree["router"] if "projection" not in tree and "router" in tree else _cosines(flat, tree, chosen)
    )
    bias = lambda name: tree.get(f"{name}_bias", 0.0)
    logits = logits + bias("router")
    weights, statistics = route(logits, batch["tokens"].ravel(), tree.get("bias"), chosen)
    weights = weights * tree["expert_scale"] if chosen.get("norms") else weights
    inputs = jnp.repeat(routed[:, None], weights.shape[1], axis=1)
    if chosen.get("weigh_inputs"):
        inputs, weights = inputs * weights[:, :, None], (weights > 0).astype(weights.dtype)
    made = {
        name: jnp.einsum("tne,nef->tnf", inputs, tree[name]) + bias(name) for name in ("gate", "up") if name in tree
    }
    down = jnp.einsum("tnf,nfe->tne", _hidden(made, options), tree["down"]) + bias("down")
    y = jnp.einsum("tn,tne->te", weights * counts[:, None], down)
    if chosen["shared"]:
        made = {name: flat @ tree[f"shared_{name}"] + bias(f"shared_{name}") for name in made}
        shared = _hidden(made, options) @ tree["shared_down"] + bias("shared_down")
        shared = shared / (1 + jnp.exp(-flat @ tree["shared_router"])) if "shared_router" in tree else shared
        if chosen.get("norms"):
            y, shared = normed(y, "post_routed_norm"), normed(shared, "post_shared_norm")
        y += shared
    total = chosen["balance_loss"] * counts.sum() * balance(weights, statistics, counts, chosen)
    total += chosen["z_loss"] * jnp.sum(counts * jax.nn.logsumexp(logits, axis=1) ** 2)
    if chosen["sequence_loss"]:
        for row in range(len(x)):
            part = slice(row * x.shape[1], (row + 1) * x.shape[1])
            real, one = counts[part], balance(weights[part], statistics[part], counts[part], chosen)
            total += chosen["sequence_loss"] * jnp.where(real.sum() > 0, real.sum() * one, 0)
    return y.reshape(x.shape), total, counts @ (weights > 0)


def _hidden(made: Mapping[str, Array], options: Options) -> Array:
    """The hidden activation of gate and up, or of up alone: its ReLU, squared."""
    if options["activation"] == "geglu":
        return feed_forward64.gelu(made["gate"]) * made["up"]
    if "gate" in made:
        return feed_forward64.gated(made["gate"], made["up"], options)
    return jnp.maximum(made["up"], 0.0) ** 2


def _cosines(flat: Array, tree: Tree, chosen: Mapping[str, Any]) -> Array:
    """Logits of the router `cosine`; of one that learns nothing, zeros."""
    if "projection" not in tree:
        return jnp.zeros((len(flat), chosen["count"]))
    projected, vectors = flat @ tree["projection"], tree["router"]
    lengths = jnp.linalg.norm(projected, axis=1)[:, None] * jnp.linalg.norm(vectors, axis=0)
    return projected @ vectors / lengths / (0.07 * jnp.exp(tree["temperature"]))


def _objective(weights: Tree, options: Options, batch: Mapping[str, Array]) -> tuple[Array, Any]:
    losses, chosen = [], []

    def routed(h: Array, tree: Tree, options: Options) -> Array:
        y, loss, counts = experts(h, tree, options, batch)
        losses.append(loss)
        chosen.append(counts)
        return y

    with mock.patch.object(decoder64, "feed_forward", routed):
        likelihood = decoder64.mean_loss(weights, options, batch)
    return likelihood + sum(losses) / (batch["segments"] > 0).sum(), (likelihood, jnp.stack(chosen))


def _call(weights: Tree, options: Options, batch: Mapping[str, Any]) -> Any:
    full = complete(options) | {"experts": options["experts"]}
    with jax.enable_x64(True):
        doubles = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), weights)
        types = dict.fromkeys(decoder64.BATCH_KEYS, np.int64) | {"mask": np.float64}
        inputs = {name: np.asarray(batch[name], dtype) for name, dtype in types.items()}
        objective = lambda weights, batch: _objective(weights, full, batch)
        compiled = jax.jit(jax.value_and_grad(objective, has_aux=True), compiler_options=PLAIN)
        return jax.tree.map(np.asarray, compiled(doubles, inputs))


def logits(weights: Tree, options: Options, batch: Mapping[str, Any]) -> np.ndarray:
    """Logits of a batch [row, seq, vocab]."""
    full = complete(options) | {"experts": options["experts"]}
    with jax.enable_x64(True):
        doubles = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), weights)
        inputs = {name: jnp.asarray(batch[name]) for name in decoder64.BATCH_KEYS}
        routed = lambda h, tree, options: experts(h, tree, options, inputs)[0]
        with mock.patch.object(decoder64, "feed_forward", routed):
            compiled = jax.jit(lambda weights: decoder64.forward(weights, full, inputs), compiler_options=PLAIN)
            return np.asarray(compiled(doubles))


def loss_and_gradients(weights: Tree, options: Options, batch: Mapping[str, Any]) -> tuple[float, Tree, Any]:
    """Mean likelihood, the gradients of it with the auxiliary losses, and the choices of each expert by layer."""
    (_, (likelihood, chosen)), gradients = _call(weights, options, batch)
    return float(likelihood), gradients, chosen

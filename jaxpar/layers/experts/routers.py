"""The routers that `model.experts.router` can name."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxpar.config.mappings import routers as mappings
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.mappings.routers import Annealed, Biased, Forced, Groups, InGroups, Jitter, Scaled
from jaxpar.config.parts import NoOptions
from jaxpar.config.reading.typed import record_from_plain
from jaxpar.layers.experts.assignment import balanced, chosen_by_experts
from jaxpar.layers.experts.routing import (
    NO_EXPERT,
    Logits,
    Router,
    RouterState,
    Routing,
    balance_loss,
    chosen,
    expert_mask,
    gshard_loss,
    importance_and_load_loss,
    largest,
    sam_loss,
    selected,
)

HIDDEN = -1e30
"""Stands for minus infinity, without NaN in derivatives."""


def softmax_top_k(logits: Logits, state: RouterState, experts: ExpertsConfig, options: Scaled) -> Routing:
    """The k largest probabilities are the weights, which add up to less than 1 (OLMoE, arXiv:2409.02060), times `scale`
    (DeepSeek-V2, arXiv:2405.04434)."""
    probabilities = jax.nn.softmax(logits)
    indices = selected(state, _mask_groups(logits, options, probabilities, options.group_best), experts.per_token)
    return Routing(indices, options.scale * chosen(probabilities, indices), {"probabilities": probabilities})


def top_k_softmax(logits: Logits, state: RouterState, experts: ExpertsConfig, options: Scaled) -> Routing:
    """The weights are the softmax of the k largest logits (Mixtral, arXiv:2401.04088), times `scale`; normalising the k
    largest probabilities gives the same (Qwen3)."""
    probabilities = jax.nn.softmax(logits)
    indices = selected(state, _mask_groups(logits, options, probabilities, options.group_best), experts.per_token)
    weights = jax.nn.softmax(jnp.where(indices == NO_EXPERT, HIDDEN, chosen(logits, indices)))
    return Routing(indices, options.scale * weights, {"probabilities": probabilities})


def gshard(logits: Logits, state: RouterState, experts: ExpertsConfig, options: NoOptions) -> Routing:
    """The two largest probabilities, divided by their sum (GShard, arXiv:2006.16668, algorithm 1). Both experts are
    always used: the paper leaves the second out at random to save room, and here no token is dropped."""
    probabilities = jax.nn.softmax(logits)
    indices = selected(state, logits, 2)
    gates = chosen(probabilities, indices)
    first = expert_mask(indices[:, :1], logits.shape[-1])[:, 0]
    return Routing(indices, gates / gates.sum(-1, keepdims=True), {"probabilities": probabilities, "first": first})


def noisy_top_k(logits: Logits, state: RouterState, experts: ExpertsConfig, options: NoOptions) -> Routing:
    """Noise of a learned deviation is added before the k largest logits are chosen (arXiv:1701.06538, section 2.1).

    `load` is the probability that an expert is among the k largest if its own noise is drawn again.
    """
    assert state.noise is not None, "a router with noise needs the logits of its deviation"
    deviation = jax.nn.softplus(state.noise) + 1e-2
    noisy = logits if state.drawn is None else logits + state.drawn * deviation
    # One more than are chosen: what an expert has to exceed to be among the k largest of all but itself.
    best = largest(noisy, experts.per_token + 1)
    indices = selected(state, noisy, experts.per_token)
    values = chosen(noisy, best)
    weights = jax.nn.softmax(chosen(noisy, indices))
    gates = jnp.einsum("tk,tke->te", weights, expert_mask(indices, logits.shape[-1]), precision="highest")
    inside = noisy > values[:, -1:]
    threshold = jnp.where(inside, values[:, -1:], values[:, -2:-1])
    load = jax.scipy.stats.norm.cdf((logits - threshold) / deviation)
    return Routing(indices, weights, {"gates": gates, "load": load})


def sigmoid(logits: Logits, state: RouterState, experts: ExpertsConfig, options: Biased) -> Routing:
    """The largest sums of sigmoid and bias are chosen, and the weights are the sigmoids divided by their sum, with
    `epsilon` added, times `scale` (DeepSeek-V3, arXiv:2412.19437, equations 12-16)."""
    return _biased(jax.nn.log_sigmoid(logits), jax.nn.sigmoid(logits), state, experts, options)


def biased_softmax(logits: Logits, state: RouterState, experts: ExpertsConfig, options: Biased) -> Routing:
    """The same with probabilities of all logits instead of sigmoids (ERNIE 4.5's published code)."""
    return _biased(jax.nn.log_softmax(logits), jax.nn.softmax(logits), state, experts, options)


def _biased(logarithms: Logits, scores: Logits, state: RouterState, experts: ExpertsConfig, options: Biased) -> Routing:
    """The largest sums of score and bias, weighted by the scores divided by their sum."""
    assert state.bias is not None, "this router chooses by a bias"
    ranked = scores + state.bias
    indices = selected(state, _mask_groups(ranked, options, ranked, best=2), experts.per_token)
    # By their logarithms, since all may be 0 in float32: a bias can choose such experts.
    of_chosen = jnp.where(indices == NO_EXPERT, HIDDEN, chosen(logarithms, indices))
    weights = jax.nn.softmax(of_chosen)
    if options.epsilon:
        total = jnp.exp(of_chosen).sum(-1, keepdims=True)
        weights = weights * total / (total + options.epsilon)
    return Routing(indices, options.scale * weights, {"probabilities": jax.nn.softmax(logarithms)})


def sigmoid_top_k(logits: Logits, state: RouterState, experts: ExpertsConfig, options: NoOptions) -> Routing:
    """The sigmoids of the k largest logits are the weights, whatever they add up to (Llama 4)."""
    indices = selected(state, logits, experts.per_token)
    weights = jnp.where(indices == NO_EXPERT, 0.0, jax.nn.sigmoid(chosen(logits, indices)))
    return Routing(indices, weights, {"probabilities": jax.nn.softmax(jax.nn.log_sigmoid(logits))})


def k_top_1(logits: Logits, state: RouterState, experts: ExpertsConfig, options: NoOptions) -> Routing:
    """Experts stand in k groups, each with a softmax of its own whose largest probability is chosen (M6-T,
    arXiv:2105.15082, section 3.1)."""
    groups = logits.reshape(len(logits), experts.per_token, -1)
    probabilities = jax.nn.softmax(groups)
    within = largest(groups, 1)[..., 0]
    indices = within + jnp.arange(experts.per_token) * groups.shape[-1] if state.replay is None else state.replay
    flat = probabilities.reshape(logits.shape)
    return Routing(indices, chosen(flat, indices), {"probabilities": flat / experts.per_token})


def hashed(logits: Logits, state: RouterState, experts: ExpertsConfig, options: NoOptions) -> Routing:
    """A fixed function of the token chooses each expert, with equal weights (hash layers, arXiv:2106.04426).

    The experts of a token are neighbours from a hash on, so that they differ.
    """
    assert state.ids is not None, "a hash is one of tokens"
    first = _mixed(state.ids) % np.uint32(experts.count)
    indices = (first[:, None].astype(jnp.int32) + jnp.arange(experts.per_token)) % experts.count
    indices = indices if state.replay is None else state.replay
    weights = jnp.full(indices.shape, 1 / experts.per_token, jnp.float32)
    return Routing(indices, weights, {})


def sam(logits: Logits, state: RouterState, experts: ExpertsConfig, options: Groups) -> Routing:
    """Switch and mixture (arXiv:2110.07431): the group with the largest sum of probabilities is chosen, and within it
    the k largest, which are the weights. Probabilities of other groups above the least of those are `misaligned`."""
    probabilities = jax.nn.softmax(logits)
    of_groups = probabilities.reshape(len(logits), options.groups, -1).sum(-1)
    group = expert_mask(largest(of_groups, 1), options.groups)[:, 0]
    inside = jnp.repeat(group, experts.count // options.groups, axis=1) > 0
    indices = selected(state, jnp.where(inside, logits, HIDDEN), experts.per_token)
    weights = chosen(probabilities, indices)
    above = jnp.where(inside, 0.0, jax.nn.relu(probabilities - weights[:, -1:]))
    return Routing(indices, weights, {"probabilities": probabilities, "misaligned": above.sum(-1, keepdims=True)})


def sparse_mixer(logits: Logits, state: RouterState, experts: ExpertsConfig, options: Jitter) -> Routing:
    """The largest logit, and then the largest of the others; the weight of each is its probability among those that are
    near it (GRIN, arXiv:2409.12136, section 2.2). The paper draws both in training; here they are the largest, for
    which its estimate of the gradient is the derivative of the weight."""
    indices = selected(state, logits, 2)
    others = jnp.where(expert_mask(indices[:, :1], experts.count)[:, 0] > 0, HIDDEN, logits)
    weights = [
        chosen(_softmax_near_largest(logits, rest, options.jitter), indices[:, turn : turn + 1])
        for turn, rest in enumerate((logits, others))
    ]
    return Routing(indices, jnp.concatenate(weights, axis=-1), {"probabilities": jax.nn.softmax(logits)})


def _softmax_near_largest(logits: Logits, rest: Logits, jitter: float) -> Logits:
    """Probabilities of the logits in `rest` that are not far below the largest of them."""
    best = rest.max(-1, keepdims=True)
    far = best - logits > 2 * jitter * jnp.maximum(jnp.abs(logits), best)
    return jax.nn.softmax(jnp.where(far, HIDDEN, rest))


def dense_to_sparse(logits: Logits, state: RouterState, experts: ExpertsConfig, options: Annealed) -> Routing:
    """A softmax with Gumbel noise whose temperature falls with the step, so that fewer and fewer experts have more than
    `threshold` of it (EvoMoE, arXiv:2112.14397, section 4.2). Those are used, and in any case the k largest; without
    noise, as in an evaluation, the k largest at the last temperature."""
    if state.drawn is None or state.step is None:
        indices = largest(logits, experts.per_token)
        probabilities = jax.nn.softmax(logits / options.last_temperature)
        weights = jax.nn.softmax(chosen(logits, indices) / options.last_temperature)
        return Routing(indices, weights, {"probabilities": probabilities})
    done = jnp.minimum(state.step / max(1, options.anneal_steps), 1.0)
    temperature = options.temperature + done * (options.last_temperature - options.temperature)
    gates = jax.nn.softmax((logits + state.drawn) / temperature)
    best = expert_mask(largest(gates, experts.per_token), experts.count).sum(1) > 0
    used = best | (lax.stop_gradient(gates) >= options.threshold)
    if state.replay is not None:
        return Routing(state.replay, chosen(gates, state.replay), {"probabilities": gates})
    return Routing(_used(used), gates, {"probabilities": gates})


def base(logits: Logits, state: RouterState, experts: ExpertsConfig, options: NoOptions) -> Routing:
    """Router in which, in training, every expert gets equally many tokens of the microbatch, such that the sum of
    their logits is the largest; else a token's largest logit is chosen. The weight is its sigmoid (BASE layers,
    arXiv:2103.16716)."""
    if state.train and state.replay is None:
        assert state.order is not None and state.valid is not None, "an assignment is one of all tokens"
        indices = state.order.local(balanced(state.order.gather(logits), state.order.gather(state.valid)))[:, None]
    else:
        indices = selected(state, logits, 1)
    return Routing(indices, jax.nn.sigmoid(chosen(logits, indices)), {})


def expert_choice(logits: Logits, state: RouterState, experts: ExpertsConfig, options: Forced) -> Routing:
    """Each expert takes the tokens of the microbatch with its largest probabilities, k/E of them, and the probabilities
    are the weights (arXiv:2202.09368, section 3.2)."""
    probabilities = jax.nn.softmax(logits)
    if state.replay is not None:
        return Routing(state.replay, chosen(probabilities, state.replay), {})
    assert state.order is not None and state.valid is not None, "a choice is one among all tokens"
    valid = state.order.gather(state.valid)
    used = state.order.local(chosen_by_experts(state.order.gather(probabilities), valid, experts.per_token))
    return Routing(_used(used), probabilities, {})


def _used(experts: Bool[Array, "tokens experts"]) -> Int[Array, "tokens experts"]:
    """Indices of routers for which `Router.all_experts` holds."""
    return jnp.where(experts, jnp.arange(experts.shape[1]), NO_EXPERT)


def _mixed(ids: Int[Array, " tokens"]) -> Array:
    """The finaliser of MurmurHash3, in 32 bits."""
    x = ids.astype(jnp.uint32)
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def _mask_groups(scores: Logits, options: InGroups, ranked: Logits, best: int) -> Logits:
    """`scores` with those outside a token's `groups_per_token` best groups hidden; a group is as good as the sum of its
    `best` largest numbers in `ranked` (DeepSeek-V2, arXiv:2405.04434, with 1; DeepSeek-V3 and Mistral 4 with 2)."""
    if options.groups is None:
        return scores
    groups = lax.stop_gradient(ranked).reshape(len(ranked), options.groups, -1)
    rank = lax.top_k(groups, min(best, groups.shape[-1]))[0].sum(-1)
    allowed = expert_mask(largest(rank, options.groups_per_token or 1), options.groups).sum(1) > 0
    allowed: Bool[Array, "tokens experts"] = jnp.repeat(allowed, groups.shape[-1], axis=1)
    return jnp.where(allowed, scores, HIDDEN)


def entropy(logits: Logits) -> Float[Array, " tokens"]:
    """Entropy of the softmax of each token's logits, in nats."""
    log = jax.nn.log_softmax(logits)
    return -jnp.sum(jnp.exp(log) * log, axis=-1)


ROUTERS: dict[str, Router] = {
    "softmax_top_k": Router(softmax_top_k, balance_loss),
    "top_k_softmax": Router(top_k_softmax, balance_loss, normalised=True),
    "switch": Router(softmax_top_k, balance_loss, per_token=1),
    "gshard": Router(gshard, gshard_loss, per_token=2, by_row=False),
    "noisy_top_k": Router(
        noisy_top_k, importance_and_load_loss, noise=True, draw=jax.random.normal, by_row=False, normalised=True
    ),
    "sigmoid": Router(sigmoid, balance_loss, bias=True, normalised=True),
    "biased_softmax": Router(biased_softmax, balance_loss, bias=True, normalised=True),
    "sigmoid_top_k": Router(sigmoid_top_k, balance_loss),
    "k_top_1": Router(k_top_1, balance_loss),
    "hash": Router(hashed, None, ids=True, learned=False, by_row=False),
    "sam": Router(sam, sam_loss, by_row=False),
    "cosine": Router(softmax_top_k, balance_loss, cosine=True),
    "sparse_mixer": Router(sparse_mixer, balance_loss, per_token=2),
    "dense_to_sparse": Router(dense_to_sparse, balance_loss, draw=jax.random.gumbel, anneals=True, all_experts=True),
    "base": Router(base, None, ordered=True, per_token=1, by_row=False),
    "expert_choice": Router(expert_choice, None, ordered=True, all_experts=True, by_row=False),
}
"""Routers by name; `jaxpar.config.mappings.routers.ROUTERS` lists the names.
`switch` is `softmax_top_k` of one expert (arXiv:2101.03961), and `cosine` of other logits (X-MoE, arXiv:2204.09179)."""


@lru_cache(maxsize=1000)
def options_of(experts: ExpertsConfig, key: str = "model.experts") -> Any:
    """`router_options` as the dataclass of the router; raises `UserError` for a wrong name or type."""
    return record_from_plain(mappings.ROUTERS[experts.router], experts.router_options, f"{key}.router_options")


def groups_of(experts: ExpertsConfig) -> tuple[int, int]:
    """Groups of experts, and those of them that a token uses."""
    options = options_of(experts)
    groups = getattr(options, "groups", None)
    return (1, 1) if groups is None else (groups, getattr(options, "groups_per_token", None) or groups)


def projection_of(experts: ExpertsConfig) -> int:
    """Width in which the router `cosine` compares tokens and experts."""
    return options_of(experts).projection or max(1, experts.count // 2)

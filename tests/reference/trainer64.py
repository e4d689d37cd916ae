"""A plain float64 trainer that the tests take as the truth: AdamW and Muon written out by hand in NumPy.

With t the 0-based step and g the gradient of the mean loss over the unmasked tokens of the step:

Clipping, before anything else: norm = sqrt(sum of g^2 over all leaves); g <- g * min(1, clip_norm / norm). The norm
that is reported is the one before clipping.

Schedule: learning rate = peak * s(t), with W = warmup_steps, T = decay_steps, f = final_fraction.
- t < W: s = (t + 1) / W.
- Afterwards, with u = clip((t - W) / (T - W), 0, 1), and u = 1 where T <= W:
  cosine s = f + (1 - f) (1 + cos(pi u)) / 2; linear s = 1 - (1 - f) u; constant s = 1;
  wsd s = 1 - (1 - f) v, with D = decay_fraction * T and v = clip((t - (T - D)) / D, 0, 1): flat, then linear
  (D = 0: v is 0 before T and 1 from T on).

AdamW (Loshchilov & Hutter 2019, algorithm 2), m = v = 0 at the start:
  m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2
  w <- w - lr * ((m / (1 - b1^(t+1))) / (sqrt(v / (1 - b2^(t+1))) + epsilon) + wd * w)
where wd is `weight_decay` for matrices and embeddings (`DECAYED`) and 0 for norms and biases.

Muon (Jordan et al. 2024) for the matrices of the layers (`MATRICES`), AdamW for the rest. For each layer, on the whole
matrix with `in` input and `out` output dims (query/key/value [E, H D]; output [H D, E]; gate/up [E, F]; down [F, E]),
with M = 0 at the start:
  M <- mu M + g;  U = g + mu M (Nesterov);  X = U / (|U| + 1e-7), Frobenius norm
  `iterations` times: A = X X^T;  X <- 3.4445 X + (-4.7750 A + 2.0315 A A) X
  w <- w - lr * (sqrt(max(1, out / in)) X + wd * w), lr = matrix_learning_rate * s(t).

Shares no code with jaxpar.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float64

from tests.reference.decoder64 import loss_and_gradients
from tests.reference.options import Options
from tests.reference.tree import Path, Tree, flatten, unflatten

MATRICES: dict[Path, int] = {
    ("layers", "all", "attention", "query"): 1, ("layers", "all", "attention", "key"): 1,
    ("layers", "all", "attention", "value"): 1, ("layers", "all", "attention", "output"): 2,
    ("layers", "all", "mlp", "gate"): 1, ("layers", "all", "mlp", "up"): 1, ("layers", "all", "mlp", "down"): 1,
}  # fmt: skip
"""Leaves that Muon updates, and how many of their dims (after the layers) are input dims."""
DECAYED = frozenset(MATRICES) | {("embedding", "tokens"), ("embedding", "positions"), ("head", "weight")}
"""Leaves with weight decay."""
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def schedule(step: int, optimizer_options: Options) -> float:
    """Learning rate at a 0-based step, as a fraction of the peak."""
    warmup, end = optimizer_options["warmup_steps"], optimizer_options["decay_steps"]
    final, shape = optimizer_options["final_fraction"], optimizer_options["schedule"]
    if step < warmup:
        return (step + 1) / warmup
    if shape == "constant":
        return 1.0
    if shape == "wsd":
        fall = optimizer_options["decay_fraction"] * end
        if fall == 0:
            return final if step >= end else 1.0
        return 1 - (1 - final) * min(1.0, max(0.0, (step - (end - fall)) / fall))
    progress = min(1.0, (step - warmup) / (end - warmup)) if end > warmup else 1.0
    if shape == "linear":
        return 1 - (1 - final) * progress
    if shape == "cosine":
        return final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2
    raise ValueError(f"schedule: {shape!r} is none of cosine, linear, wsd, constant")


def clip(gradients: dict[Path, np.ndarray], clip_norm: float | None) -> tuple[dict[Path, np.ndarray], float]:
    """Gradients scaled to a global norm of at most `clip_norm`, and the norm that they had."""
    norm = math.sqrt(sum(float(np.sum(leaf * leaf)) for leaf in gradients.values()))
    if clip_norm is None or norm <= clip_norm:
        return gradients, norm
    return {path: leaf * (clip_norm / norm) for path, leaf in gradients.items()}, norm


def adamw_direction(
    gradient: Float64[np.ndarray, "*dims"], state: dict[str, Any], step: int, optimizer_options: Options
) -> Float64[np.ndarray, "*dims"]:
    """AdamW's update without the decay and the learning rate; moves the moments in `state`."""
    beta1, beta2 = optimizer_options["beta1"], optimizer_options["beta2"]
    state["first"] = beta1 * state.get("first", 0.0) + (1 - beta1) * gradient
    state["second"] = beta2 * state.get("second", 0.0) + (1 - beta2) * gradient**2
    first = state["first"] / (1 - beta1 ** (step + 1))
    second = state["second"] / (1 - beta2 ** (step + 1))
    return first / (np.sqrt(second) + optimizer_options["epsilon"])


def newton_schulz(matrix: Float64[np.ndarray, "rows cols"], iterations: int) -> Float64[np.ndarray, "rows cols"]:
    """The nearest semi-orthogonal matrix, roughly: singular values end near 1 (Jordan et al. 2024)."""
    a, b, c = NEWTON_SCHULZ
    x = matrix / (np.linalg.norm(matrix) + 1e-7)
    for _ in range(iterations):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def muon_direction(
    gradient: Float64[np.ndarray, "layers ..."], state: dict[str, Any], inputs: int, optimizer_options: Options
) -> Float64[np.ndarray, "layers ..."]:
    """Muon's update of a stack of matrices without the decay and the learning rate; moves the momentum in `state`."""
    momentum = optimizer_options["momentum"]
    state["momentum"] = momentum * state.get("momentum", 0.0) + gradient
    nesterov = gradient + momentum * state["momentum"]
    rows = math.prod(gradient.shape[1 : 1 + inputs])
    columns = math.prod(gradient.shape[1 + inputs :])
    scale = math.sqrt(max(1.0, columns / rows))
    directions = [
        scale * newton_schulz(layer.reshape(rows, columns), optimizer_options["iterations"]).reshape(layer.shape)
        for layer in nesterov
    ]
    return np.stack(directions)


def apply(
    weights: dict[Path, np.ndarray],
    gradients: dict[Path, np.ndarray],
    state: dict[Path, dict[str, Any]],
    step: int,
    optimizer_options: Options,
) -> dict[Path, np.ndarray]:
    """Weights after one update with gradients that are clipped already; moves the moments in `state`."""
    shape = schedule(step, optimizer_options)
    updated = {}
    for path, weight in weights.items():
        leaf_state = state.setdefault(path, {})
        if optimizer_options["name"] == "muon" and path in MATRICES:
            rate = optimizer_options["matrix_learning_rate"] * shape
            direction = muon_direction(gradients[path], leaf_state, MATRICES[path], optimizer_options)
        else:
            rate = optimizer_options["learning_rate"] * shape
            direction = adamw_direction(gradients[path], leaf_state, step, optimizer_options)
        decay = optimizer_options["weight_decay"] if path in DECAYED else 0.0
        updated[path] = weight - rate * (direction + decay * weight)
    return updated


def train(
    weights: Tree, options: Options, optimizer_options: Options, batches: Iterable[Mapping[str, Any]]
) -> tuple[Tree, list[float], list[float]]:
    """One update per batch, in float64.

    Args:
        weights: tree of `decoder64`; not changed.
        options: the configuration's `model` section as a dict.
        optimizer_options: its `optimizer` section as a dict, every field present, `decay_steps` a number of steps.
        batches: dicts of global arrays, one per step.

    Returns:
        the final weights, the loss of each step (before its update) and its global gradient norm (before clipping).
    """
    leaves = flatten(weights)
    state: dict[Path, dict[str, Any]] = {}
    losses, norms = [], []
    for step, batch in enumerate(batches):
        value, gradient_tree = loss_and_gradients(unflatten(leaves), options, batch)
        gradients, norm = clip(flatten(gradient_tree), optimizer_options["clip_norm"])
        leaves = apply(leaves, gradients, state, step, optimizer_options)
        losses.append(value)
        norms.append(norm)
    return unflatten(leaves), losses, norms

"""The reference trainer follows the formulas of its docstring, checked on numbers worked out by hand."""

import math

import numpy as np
import pytest

from tests.reference import decoder64, trainer64
from tests.reference.small import packed_batch, random_weights
from tests.reference.tree import flatten

OPTIMIZER = {
    "name": "adamw", "learning_rate": 0.1, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1,
    "clip_norm": 1.0, "schedule": "constant", "warmup_steps": 0, "decay_steps": 10, "decay_fraction": 0.2,
    "final_fraction": 0.1, "matrix_learning_rate": 0.02, "momentum": 0.95, "iterations": 5,
}  # fmt: skip
OPTIONS = {"layers": 2, "embed": 8, "heads": 4, "kv_heads": 2, "mlp": 12, "vocab": 11}
SCALE, HEAD = ("final_norm", "scale"), ("head", "weight")


def test_two_adamw_steps_on_a_scalar_equal_those_done_by_hand() -> None:
    weights = {SCALE: np.array([2.0]), HEAD: np.array([2.0])}
    state: dict = {}
    weights = trainer64.apply(weights, {SCALE: np.array([0.5]), HEAD: np.array([0.5])}, state, 0, OPTIMIZER)
    # The first direction of Adam is the sign of the gradient: 2 - 0.1 * 1, and with decay 2 - 0.1 * (1 + 0.1 * 2).
    assert weights[SCALE][0] == pytest.approx(1.9, abs=1e-8)
    assert weights[HEAD][0] == pytest.approx(1.88, abs=1e-8)
    weights = trainer64.apply(weights, {SCALE: np.array([-1.0]), HEAD: np.array([-1.0])}, state, 1, OPTIMIZER)
    first = (0.9 * 0.05 + 0.1 * -1.0) / (1 - 0.81)
    second = (0.95 * 0.0125 + 0.05 * 1.0) / (1 - 0.9025)
    direction = first / math.sqrt(second)
    assert weights[SCALE][0] == pytest.approx(1.9 - 0.1 * direction, abs=1e-8)
    assert weights[HEAD][0] == pytest.approx(1.88 - 0.1 * (direction + 0.188), abs=1e-8)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("constant", [0.5, 1, 1, 1, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 1, 0.85, 0.7, 0.55, 0.4, 0.4, 0.4]),
        ("cosine", [0.5, 1, 1, 0.7 + 0.3 * math.sqrt(0.5), 0.7, 0.7 - 0.3 * math.sqrt(0.5), 0.4, 0.4, 0.4]),
        ("wsd", [0.5, 1, 1, 1, 0.8, 0.6, 0.4, 0.4, 0.4]),
    ],
)
def test_schedules_warm_up_then_end_at_the_final_fraction(shape: str, expected: list[float]) -> None:
    options = {
        "schedule": shape, "warmup_steps": 2, "decay_steps": 6, "final_fraction": 0.4, "decay_fraction": 0.5,
    }  # fmt: skip
    assert [trainer64.schedule(step, options) for step in range(9)] == pytest.approx(expected)


def test_clipping_scales_all_leaves_by_the_global_norm_and_reports_the_norm_before() -> None:
    gradients = {SCALE: np.array([3.0]), HEAD: np.array([[4.0]])}
    clipped, norm = trainer64.clip(gradients, 1.0)
    assert norm == pytest.approx(5.0)
    assert clipped[SCALE][0] == pytest.approx(0.6)
    assert clipped[HEAD][0, 0] == pytest.approx(0.8)
    for limit in (5.0, None):
        kept, _ = trainer64.clip(gradients, limit)
        assert kept[HEAD][0, 0] == 4.0


def test_newton_schulz_keeps_the_singular_vectors_and_moves_the_singular_values_to_about_one() -> None:
    matrix = np.random.default_rng(0).standard_normal((6, 10))
    left, _, right = np.linalg.svd(matrix, full_matrices=False)
    orthogonal = trainer64.newton_schulz(matrix, 5)
    values = left.T @ orthogonal @ right.T
    np.testing.assert_allclose(values - np.diag(np.diag(values)), 0, atol=1e-12)
    assert np.all((np.diag(values) > 0.6) & (np.diag(values) < 1.3))
    np.testing.assert_allclose(orthogonal, trainer64.newton_schulz(matrix.T, 5).T, atol=1e-12)


def test_muon_treats_each_layer_as_one_matrix_and_scales_it_by_its_shape() -> None:
    generator, options = np.random.default_rng(0), OPTIMIZER | {"momentum": 0.5}
    query, output = generator.standard_normal((2, 3, 2, 6)), generator.standard_normal((2, 2, 6, 3))
    state: dict = {}
    direction = trainer64.muon_direction(query, state, 1, options)
    # The first Nesterov update is g + 0.5 g; 12 outputs and 3 inputs scale it by sqrt(4).
    expected = 2.0 * trainer64.newton_schulz(1.5 * query[1].reshape(3, 12), 5)
    np.testing.assert_allclose(direction[1].reshape(3, 12), expected, rtol=1e-12)
    # The second step of a zero gradient is the momentum alone: M = 0.5 g, U = 0.25 g, the same matrix once normalised.
    again = trainer64.muon_direction(np.zeros_like(query), state, 1, options)
    np.testing.assert_allclose(again, direction, atol=1e-6)
    narrow = trainer64.muon_direction(output, {}, 2, options)  # 3 outputs, 12 inputs: no scale
    expected = trainer64.newton_schulz(1.5 * output[0].reshape(12, 3), 5)
    np.testing.assert_allclose(narrow[0].reshape(12, 3), expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_training_on_one_batch_lowers_its_loss_and_leaves_the_given_weights_alone(name: str) -> None:
    weights, batch = random_weights(OPTIONS, padded_vocab=16), packed_batch(11)
    before = flatten(weights)
    trained, losses, norms = trainer64.train(weights, OPTIONS, OPTIMIZER | {"name": name}, [batch] * 8)
    assert losses[-1] < 0.5 * losses[0]
    assert len(losses) == len(norms) == 8
    assert losses[0] == pytest.approx(decoder64.loss(weights, OPTIONS, batch), rel=1e-14)
    after = flatten(trained)
    assert after.keys() == before.keys()
    for path, leaf in flatten(weights).items():
        np.testing.assert_array_equal(leaf, before[path])
        assert np.any(after[path] != leaf), ".".join(path)
    # Padded columns of the head have no gradient: only the decay moves them.
    shrunk = before[HEAD][:, 11:] * (1 - 0.1 * 0.1) ** 8
    np.testing.assert_allclose(after[HEAD][:, 11:], shrunk, rtol=1e-12)


def test_muon_moves_exactly_the_matrices_of_the_layers_at_its_own_rate() -> None:
    weights, batch = random_weights(OPTIONS, padded_vocab=16), packed_batch(11)
    still = OPTIMIZER | {"name": "muon", "matrix_learning_rate": 0.0}
    trained, _, _ = trainer64.train(weights, OPTIONS, still, [batch])
    before, after = flatten(weights), flatten(trained)
    unmoved = {path for path in before if np.array_equal(before[path], after[path])}
    assert unmoved == {path for path in before if path[-1] in {"query", "key", "value", "output", "gate", "up", "down"}}

"""Matrices that are products of two factors: the gradients are those of the whole matrices, projected; on every layout
the same numbers."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.given_weights import state_with
from tests.sentences import refused
from tests.small_run import SmallRun, small
from tests.training.parity import factor_layouts
from tests.training.parity.one_device import TOLERANCE, assert_equals_one_device

RANKS = {"query": 5, "key": 6, "value": 4, "output": 7, "gate": 9, "up": 8, "down": 10}
MODEL: dict[str, Any] = {"layers": 2, "low_rank": RANKS}


def test_gradients_are_those_of_the_products_projected():
    """With G the gradient of W = a b: that of a is G b^T, and that of b is a^T G."""
    run = SmallRun(small(model=MODEL | {"kv_heads": 4}))
    loss, found = run.loss_and_gradients()
    weights = run.by_layer(run.step.residency.initial_state().master)
    whole = SmallRun(small(model={"layers": 2, "kv_heads": 4}))
    shapes = whole.step.layout.specs["layers"]["all"]
    pairs: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {"attention": {}, "mlp": {}}
    merged: dict[str, Any] = {name: own for name, own in weights["layers"]["all"].items() if name not in pairs}
    for part, own in pairs.items():
        factors, merged[part] = weights["layers"]["all"][part], {}
        for name in [name.removesuffix("_a") for name in factors if name.endswith("_a")]:
            a, b = factors[f"{name}_a"], factors[f"{name}_b"]
            own[name] = a.reshape(2, -1, RANKS[name]), b.reshape(2, RANKS[name], -1)
            merged[part][name] = (own[name][0] @ own[name][1]).reshape(shapes[part][name].shape)
            scale = shapes[part][name].scale
            assert 0.8 * scale < merged[part][name].std() < 1.2 * scale, "the product is drawn as the matrix is"
            norms = [np.linalg.norm(factor, axis=(1, 2)) for factor in own[name]]
            np.testing.assert_allclose(*norms, rtol=0.25)
    assert sum(map(len, pairs.values())) == 7
    state = state_with(whole.step, weights | {"layers": {"all": merged}})
    wanted_loss, gradients = whole.step.gradients(state, whole.batch(0))
    assert loss == pytest.approx(float(wanted_loss), rel=TOLERANCE)
    for part, own in pairs.items():
        for name, (a, b) in own.items():
            g = np.asarray(gradients["layers"]["all"][part][name]).reshape(2, a.shape[1], -1)
            wanted = {"a": g @ b.transpose(0, 2, 1), "b": a.transpose(0, 2, 1) @ g}
            for end, factor in wanted.items():
                got = found["layers"]["all"][part][f"{name}_{end}"].reshape(factor.shape)
                assert np.abs(got - factor).max() <= TOLERANCE * np.abs(factor).max(), (part, name, end)


LAYOUTS = factor_layouts.LAYOUTS | {
    "some matrices": {"parallel": {"tensor": 4, "context": 2}, "model": {"low_rank": {"up": 3, "value": 2}}}
}


@pytest.mark.matrix(quick=(), ci=1)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_has_the_gradients_of_one_device(layout: str):
    sections = LAYOUTS[layout]
    model = MODEL | sections.get("model", {})
    assert_equals_one_device(SmallRun(small(**{**sections, "model": model})), small(model=model))


def test_a_schedule_that_splits_the_backward_is_refused():
    config = small(model=MODEL, parallel={"pipe": 2, "microbatches": 2, "schedule": "zb-h1"})
    with refused("parallel.schedule", "zb-h1", "model.low_rank", "1f1b"):
        SmallRun(config)
    SmallRun(replace(config, model=replace(config.model, low_rank={})))

"""What is reported of gradients that are not finite."""

import numpy as np
import pytest

from jaxpar.mesh.layer_order import LayerOrder
from jaxpar.training.monitor.diagnosis import Broken, broken_gradients, broken_weights, describe

NAN, INF = np.nan, np.inf


def test_weights_and_layers_are_named_in_the_order_of_the_model_wherever_they_lie():
    order = LayerOrder.from_chunks([0, 1, 0, 1], [2, 1, 1, 1])  # rows 0 1 | 3 - || 2 - | 4 -
    squares = {
        "layers": {"all": {"mlp": {"up": np.array([1, INF, 1, NAN, 1, 1, NAN, 1]), "down": np.ones(8)}}},
        "head": {"weight": np.float32(NAN)},
        "final_norm": {"scale": np.float32(1)},
    }
    assert broken_gradients(squares, order) == {"head/weight": None, "layers/all/mlp/up": [2, 5]}


def test_weights_that_are_not_finite_are_named():
    assert broken_weights({"a": {"b": np.ones(3), "c": np.array([1.0, INF])}}) == ["a/c"]


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        (
            {"layers/all/mlp/down": [1, 2, 3], "layers/all/attention/query": [1, 2], "embedding/tokens": None},
            "not the gradient of mlp/down, attention/query in layers 1 to 3 and of embedding/tokens; the backward pass "
            "comes from the last layer, so it began in layer 3 (mlp/down)",
        ),
        (
            {"layers/all/mlp/down": [2, 7], "final_norm/scale": None},
            "not the gradient of mlp/down in layers 2 and 7 and of final_norm/scale; it began after the last layer",
        ),
        (
            {"layers/local/mlp/up": [1], "layers/global/mlp/up": [2], "embedding/tokens": None},
            "not the gradient of local/mlp/up, global/mlp/up in layers 1 to 2 and of embedding/tokens; the backward "
            "pass comes from the last layer, so it began in layer 2 (global/mlp/up)",
        ),
        ({"embedding/tokens": None}, "not the gradient of embedding/tokens; it began in the embedding"),
        (
            {f"layers/all/{name}": [1] for name in "abcdef"},
            "not the gradient of a, b, c, d and 2 more in layer 1; the backward pass comes from the last layer, so it "
            "began in layer 1 (a, b, c, d and 2 more)",
        ),
    ],
)
def test_a_sentence_states_where_the_backward_pass_broke(broken: Broken, expected: str):
    text = describe(broken, loss_is_finite=True, weights=[], tied=False)
    assert text == f"the loss is finite, but {expected}"


def test_weights_that_are_not_finite_explain_the_loss():
    text = describe({}, loss_is_finite=False, weights=["head/weight"], tied=False)
    assert text == "the loss is not finite, because the weights are not: head/weight"

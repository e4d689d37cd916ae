"""A part of a weight is read from the lines of the tensor in which it lies, and is that part of the whole."""

import numpy as np
import pytest

from jaxpar.interop.mapping.form import Form, Laid, LaidInRows
from jaxpar.interop.mapping.heads_form import LaidByHead
from jaxpar.mesh.parameters import ParamSpec

QUERY = ParamSpec((6, 4, 2), ("embed", "heads", "head_dim"))
KEY = ParamSpec((6, 2, 2), ("embed", "kv_heads", "head_dim"))
WIDE_QUERY = ParamSpec((6, 3, 6), ("embed", "heads", "head_dim"))
WIDER_KEY = ParamSpec((6, 2, 3), ("embed", "kv_heads", "head_dim"))
GROUP = ParamSpec((16, 2, 3), ("embed", "heads", "head_dim"))
VALUE = ParamSpec((16, 4, 5), ("embed", "heads", "head_dim"))
RATE = ParamSpec((6, 4), ("embed", "latent"))
TAPS, MORE_TAPS = (ParamSpec((heads, 2, 4), ("heads", "head_dim", "norm")) for heads in (8, 9))
OUTPUT = ParamSpec((4, 2, 6), ("heads", "head_dim", "embed"), inputs=2)
BIAS = ParamSpec((4, 2), ("heads", "head_dim"))
TABLE = ParamSpec((9, 6), ("vocab", "embed"))
UP = ParamSpec((3, 6, 4), ("experts", "embed", "mlp"))
DOWN = ParamSpec((3, 4, 6), ("experts", "mlp", "embed"))
UP_BIAS = ParamSpec((3, 4), ("experts", "mlp"))

CASES = {
    "linear": (Laid(Form.LINEAR, (QUERY,)), (8, 6)),
    "three in one": (Laid(Form.LINEAR, (QUERY, KEY, KEY)), (16, 6)),
    "three of Conv1D": (Laid(Form.TABLE, (QUERY, KEY, KEY)), (6, 16)),
    "back": (Laid(Form.LINEAR, (OUTPUT,)), (6, 8)),
    "back of Conv1D": (Laid(Form.TABLE, (OUTPUT,)), (8, 6)),
    "bias": (Laid(Form.VECTOR, (BIAS, BIAS)), (16,)),
    "table": (Laid(Form.TABLE, (TABLE,)), (9, 6)),
    "experts": (Laid(Form.LINEAR, (DOWN,)), (3, 6, 4)),
    "two of experts": (Laid(Form.LINEAR, (UP, UP)), (3, 8, 6)),
    "two of experts in turn": (Laid(Form.TABLE, (UP, UP), interleaved=True), (3, 6, 8)),
    "neighbouring pairs": (LaidByHead(Form.LINEAR, (WIDE_QUERY,), rotary=4), (18, 6)),
    "neighbouring pairs of a latent vector": (LaidByHead(Form.LINEAR, (TABLE,), rotary=4), (6, 9)),
    "two by head": (LaidByHead(Form.LINEAR, (KEY, WIDER_KEY)), (10, 6)),
    "by head of keys": (LaidByHead(Form.LINEAR, (GROUP, VALUE), groups=2), (26, 16)),
    "two of each head by head of keys": (LaidByHead(Form.LINEAR, (RATE, RATE), groups=2), (8, 6)),
    "taps": (LaidInRows(Form.TAPS, (TAPS, MORE_TAPS)), (34, 1, 4)),
    "heads": (LaidInRows(Form.HEADS, (ParamSpec((5,), ("heads",)),)), (1, 1, 5, 1)),
    "row": (LaidInRows(Form.ROW, (ParamSpec((5,), ("router",)),)), (1, 5)),
    "two biases of experts in turn": (Laid(Form.VECTOR, (UP_BIAS, UP_BIAS), interleaved=True), (3, 8)),
}


@pytest.mark.parametrize("case", CASES)
def test_every_part_of_every_weight_comes_from_its_lines(case: str):
    laid, shape = CASES[case]
    assert laid.shape == shape
    generator = np.random.default_rng(0)
    weights = [generator.standard_normal(spec.shape) for spec in laid.specs]
    tensor = laid.join(weights)
    assert tensor.shape == shape and tensor.flags.c_contiguous
    for _ in range(30):
        for place, (spec, weight) in enumerate(zip(laid.specs, weights, strict=True)):
            ends = [sorted(generator.choice(size + 1, 2, replace=False)) for size in spec.shape]
            region = tuple(slice(int(first), int(last)) for first, last in ends)
            asked = []

            def read(lines, tensor=tensor, asked=asked):
                asked.append(tensor[lines].size)
                return tensor[lines]

            np.testing.assert_array_equal(laid.read(place, region, read), weight[region])
            assert asked[0] <= weight[region].size * max(spec.shape), "only the lines in which it lies"

"""Gradients of grouped matmuls that the GPU suite times beside those of codes."""

import jax

from benchmarks.gpu import grouped_tiled
from pallas_kernels.unsupported import Unsupported
from tests.sentences import refused


def test_gradients_in_bfloat16_beside_those_of_codes_are_refused_without_a_gpu():
    (case,) = (case for case in grouped_tiled.DRY if case.of == "weights")
    with refused("'mosaic'", "the platform is cpu", error=Unsupported):
        jax.eval_shape(grouped_tiled._paths(case)["mosaic bfloat16"], *case.arrays())

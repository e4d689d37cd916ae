"""An export in FP8: matrices as codes of float8_e4m3fn with a scale each, in the format `compressed-tensors` of vLLM.

`NAME.weight` has the codes [outputs, inputs] and `NAME.weight_scale` the factor, float32 [1]: the least power of two by
which the largest magnitude fits, as in training (`jaxpar.precision.scale`).
The inputs of these matrices are quantized by what reads the folder, each token with a scale of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import frexp

import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.config.kinds import kind_model, layer_kinds
from jaxpar.interop.mapping.family import Family, StoredTensor
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.sources.float8_blocks import FLOAT8
from jaxpar.interop.sources.full_matrices import full_matrix_model
from jaxpar.interop.sources.hf_folder import HFFolder
from jaxpar.interop.sources.open_source import Model
from jaxpar.layers.declared import declare_layer
from jaxpar.layers.matmul_formats import is_exact, quantized_matrices
from jaxpar.precision.recipe import E4M3, LARGEST
from jaxpar.precision.scale import MOST, SMALLEST

FORMAT = "compressed-tensors"
WEIGHT, SCALE = ".weight", ".weight_scale"
SCALE_BYTES = 4


def quantized_names(source: Model, family: Family, tensors: Iterable[StoredTensor]) -> frozenset[str]:
    """The tensors that are written as codes: the matrices that a run multiplies in FP8; of a run without FP8, and of
    other sources, all matrices of the layers but routers.

    Raises:
        UserError: the family's tensors are no matrices of linear maps.
    """
    tensors = list(tensors)
    by_layer = [_matrices(source, layer) for layer in range(source.model.layers)]
    names = frozenset(
        one.name
        for one in tensors
        if one.layer is not None
        and one.laid.form is Form.LINEAR
        and len(one.laid.shape) == 2
        and {weight.rpartition(".")[2] for weight in one.weights} <= by_layer[one.layer]
    )
    if not names:
        raise UserError(
            f"--format: {FORMAT} has scales of linear maps, and {family.name} stores none of its matrices as those; "
            "expected the default, without --format"
        )
    return names


def _matrices(source: Model, layer: int) -> set[str]:
    model = full_matrix_model(source.model)
    kind_of_layer = kind_model(model, layer_kinds(model)[layer])
    if not isinstance(source, HFFolder) and source.config.precision.matmul is not None:
        if is_exact(source.config, layer):
            return set()
        return {name for matrices in quantized_matrices(source.config, kind_of_layer).values() for name in matrices}
    groups = [group for part in declare_layer(kind_of_layer).parts for group in part.groups if not group.exact]
    return {name for group in groups for name in group.weights}


def quantize(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(codes, scale [1]) of a matrix."""
    values = values.astype(np.float32)
    fraction, power = frexp(float(np.abs(values).max()) / LARGEST[E4M3])
    power = min(max(power - (fraction == 0.5), SMALLEST), MOST)
    scale = np.float32(2.0**power if fraction else 1)
    return np.clip(values / scale, -LARGEST[E4M3], LARGEST[E4M3]).astype(FLOAT8), scale.reshape(1)


def quantization_config(tensors: Iterable[StoredTensor], quantized: frozenset[str]) -> dict[str, object]:
    """`quantization_config` of `config.json`. Linear maps that are not quantized are named."""
    linear = [one.name for one in tensors if one.laid.form is Form.LINEAR and len(one.laid.shape) == 2]
    ignored = [name.removesuffix(WEIGHT) for name in linear if name not in quantized]
    of_weights = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}
    of_inputs = of_weights | {"strategy": "token", "dynamic": True}
    group = {"targets": ["Linear"], "weights": of_weights, "input_activations": of_inputs, "output_activations": None}
    return {
        "quant_method": FORMAT, "format": "float-quantized", "quantization_status": "compressed",
        "config_groups": {"group_0": group}, "ignore": ignored, "kv_cache_scheme": None,
    }  # fmt: skip

"""`quantization_config`: the formats of quantized tensors that are read, and what their options must be."""

from __future__ import annotations

from collections.abc import Mapping

from jaxpar.interop.mapping.family import Family
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.mapping.keys import HFConfig

QUANTIZATION = "quantization_config"
"""The key of tensors that are stored in fewer bits."""
FLOAT8, COMPRESSED, NF4, GPTQ, AWQ = "fp8", "compressed-tensors", "bitsandbytes", "gptq", "awq"
"""Values of `quant_method` of any family."""
_OPTIONS: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    FLOAT8: {},
    NF4: {
        "load_in_4bit": (True,), "load_in_8bit": (False, None), "bnb_4bit_quant_type": ("nf4", "fp4"),
        "bnb_4bit_quant_storage": ("uint8", None),
    },
    GPTQ: {
        "bits": (4, 8, 2), "checkpoint_format": ("gptq", "gptq_v2", None), "format": ("gptq", "gptq_v2", None),
        "pack_dtype": ("int32", None), "dynamic": ({}, None),
    },
    AWQ: {
        "bits": (4,), "version": ("gemm", "GEMM", None), "format": ("gemm", None), "zero_point": (True, None),
    },
}  # fmt: skip
"""The supported values of options, by `quant_method`; None stands for an absent one."""
_TRANSPOSED = (NF4, GPTQ, AWQ)
"""Formats of matrices [output, input], also of those that a family has the other way round."""
_GROUP = {"num_bits": (8,), "type": ("float",), "strategy": ("tensor", "channel"), "symmetric": (True, None)}
"""The supported values of each key of `weights` of a group of compressed-tensors."""


def quantization_of(hf_config: HFConfig, family: Family) -> tuple[str, Mapping[str, object]] | None:
    """The format of quantized tensors and its options; None if there are none.

    Raises:
        UserError: the format, or an option, is not supported for models of this family.
    """
    options = hf_config.get(QUANTIZATION)
    if options is None:
        return None
    options = options if isinstance(options, dict) else {"quant_method": options}
    method = options.get("quant_method")
    conv1d = any(
        line.form is Form.TABLE and "{layer}" in line.name and not line.holds_experts for line in family.tensors
    )
    supported = [
        *family.quantizations,
        *(one for one in (COMPRESSED, *_OPTIONS) if not (conv1d and one in _TRANSPOSED)),
    ]
    if not isinstance(method, str) or method not in supported:
        named = f"{' or '.join(supported)} for {family.model_type}"
        raise hf_config.refusal(f"{QUANTIZATION}.quant_method", method, named)
    if method == COMPRESSED:
        _check_compressed(hf_config, options)
    _check(hf_config, QUANTIZATION, options, _OPTIONS.get(method, {}))
    return method, options


def _check(hf_config: HFConfig, key: str, options: object, read: Mapping[str, tuple[object, ...]]) -> None:
    """Refuse an option of a mapping that has another value than those that are read."""
    for option, supported in read.items():
        value = options.get(option) if isinstance(options, dict) else None
        if value not in supported:
            wanted = " or ".join(str(one) for one in supported if one is not None)
            raise hf_config.refusal(f"{key}.{option}", value, wanted)


def _check_compressed(hf_config: HFConfig, options: Mapping[str, object]) -> None:
    """Refuse weights that are packed otherwise than in 8 bits with a scale, or one for each output."""
    groups = options.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise hf_config.refusal(f"{QUANTIZATION}.config_groups", groups, "a mapping of groups")
    for name, group in groups.items():
        weights = group.get("weights") if isinstance(group, dict) else None
        _check(hf_config, f"{QUANTIZATION}.config_groups.{name}.weights", weights, _GROUP)

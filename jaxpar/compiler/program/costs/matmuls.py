"""Floating-point work of matrix products: dots, alone or in fusions, cuBLAS calls, cuDNN attention, our kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from jaxpar.compiler.program.hlo.records import ArrayShape, Module, Op, ProgramError, leaves
from jaxpar.compiler.program.scopes import recomputed, scopes
from pallas_kernels.attention.work import Work
from pallas_kernels.grouped_matmul.work import expected_rows


@dataclass(frozen=True)
class Product:
    """The work of one matrix product, or of one fused attention, per execution of its op."""

    flops: float
    """A multiplication and an addition count as two."""
    recomputed_flops: float
    """FLOPs among them that repeat work of the forward pass, or of another kernel of the same backward."""
    arithmetic: str
    """`float32`, `tensorfloat32`, `bfloat16`, `float16`, `float8` or `float64`."""
    pairs: float = 0.0
    """For a fused attention, pairs of a query and a key that it sees, over rows and heads; else 0."""
    backward: bool = False
    """For a fused attention, whether it makes gradients."""


_TYPES = {"bf16": "bfloat16", "f16": "float16", "f64": "float64"}
_ALGORITHMS = _TYPES | {"f32": "float32", "tf32": "tensorfloat32", "any": "float8"}
"""Arithmetic by the second part of the name of a dot algorithm, as in `dot_tf32_tf32_f32`; FP8 is `any`."""
_UNSET = ("", "ALG_UNSET", "unset")
QUIET_TARGETS = frozenset({"AllocateBuffer"})
"""Custom calls that run nothing."""
_MOVING = re.compile(r"AllocateBuffer|cu_threefry2x32(_ffi)?|__cub\$\w+|__gpu\$TopK")
"""Custom calls that multiply no matrices."""
_OURS = re.compile(r"__gpu\$xla\.gpu\.triton|mosaic_gpu\w*")
"""Custom calls of Pallas kernels, through Triton and by Mosaic GPU."""
_DELTA_OPERANDS = 8
"""Operands of kernels of `pallas_kernels.linear_attention` with the delta rule, which without it have one less."""


def products(module: Module, op: Op, *, one_backward: bool = False) -> Iterator[Product]:
    """The matrix products that one execution of `op` computes; of a fusion, those inside it.

    None of one whose work is not known, which goes into `module.unknown`.

    Args:
        module: The program.
        op: The op.
        one_backward: Whether to count our attention kernels as if one launch made all gradients, as cuDNN's does, of
            values as wide as keys. Then what a launch for keys and values repeats beside a launch for queries is not
            counted.
    """
    if op.opcode == "fusion":
        for inner in module.body(op).ops:
            yield from products(module, inner, one_backward=one_backward)
        return
    try:
        product = _product_of(op, one_backward)
    except ProgramError:
        types = " and ".join(leaf.dtype for operand in op.operands for leaf in leaves(operand.shape))
        module.unknown.operation(f"{op.opcode} {op.target or f'of {types}'}", op.name)
    else:
        yield from () if product is None else (product,)


def _product_of(op: Op, one_backward: bool) -> Product | None:
    """The work of an op that is not a fusion; None where it multiplies nothing."""
    if op.opcode == "dot":
        return _dot(op)
    if op.opcode != "custom-call" or _MOVING.fullmatch(op.target):
        return None
    ours = _OURS.fullmatch(op.target)
    if ours and (work := next(filter(None, map(Work.named, scopes(op.op_name))), None)) is not None:
        return _attention_kernel(op, work, one_backward)
    rules = _KERNELS if ours else _CALLS
    for pattern, rule in rules.items():
        if re.search(pattern, op.op_name) if ours else re.match(pattern, op.target):
            return rule(op)
    raise ProgramError(f"the work of custom call {op.target} ({op.name}) is not known", line=op.line)


def _dot(op: Op) -> Product:
    left = _array(op, 0)
    contracted = prod(left.dims[dim] for dim in op.dims_of("lhs_contracting_dims"))
    precisions = op.attributes.get("operand_precision", "").strip("{}").split(",")
    return _product(op, 2.0 * _results(op) * contracted, 1, op.attributes.get("algorithm", ""), precisions)


def _gemm(op: Op) -> Product:
    config = _section(op, "gemm_backend_config")
    left, precision = _array(op, 0), config.get("precision_config", {})
    contracted = prod(left.dims[int(dim)] for dim in config["dot_dimension_numbers"]["lhs_contracting_dimensions"])
    asked = precision.get("algorithm", ""), precision.get("operand_precision", [])
    return _product(op, 2.0 * _results(op) * contracted, 1, *asked)


def _attention(op: Op) -> Product:
    """cuDNN's attention: two products forward; backward five, of which one repeats the scores."""
    config = _section(op, "cudnn_fmha_backend_config")
    batch, heads, queries, keys = (int(size) for size in config["intermediate_tensor_shape"]["dimensions"])
    pairs = batch * heads * _seen_pairs(op, config, queries, keys)
    query, value = _array(op, 0), _array(op, 2)
    of_scores, of_values = 2.0 * pairs * query.dims[-1], 2.0 * pairs * value.dims[-1]
    kind = "float8" if query.dtype.startswith("f8") else arithmetic(op, query, query, "", [])
    if "Backward" in op.target:
        return Product(3 * of_scores + 2 * of_values, of_scores, kind, pairs, backward=True)
    flops = of_scores + of_values
    return Product(flops, flops if recomputed(op.op_name) else 0.0, kind, pairs)


def _attention_kernel(op: Op, work: Work, one_backward: bool) -> Product:
    """Our attention, of arrays [batch, tokens, heads, width]."""
    query, key, value = (_array(op, place) for place in range(3))
    batch, queries, heads, width = query.dims
    pairs = batch * heads * work.pairs(queries, key.dims[1])
    value_width = width if one_backward else value.dims[-1]
    each = {name: work.flops(name, pairs, width, value_width) for name in work.products}
    if one_backward and work.repeated and not {"dq", "dk"} <= {*work.products}:
        pairs /= 2  # each of two launches counts half of the exponentials, and only one counts the repeated products
        each = {name: each[name] for name in work.products if "dq" in work.products or name not in work.repeated}
    flops = sum(each.values())
    again = flops if recomputed(op.op_name) else sum(each.get(name, 0.0) for name in work.repeated)
    return Product(flops, again, arithmetic(op, query, key, "", []), pairs, backward=bool(work.repeated))


def _grouped(op: Op) -> Product:
    """Rows times the matrices of their groups, or one matrix, or gradients of these; of as many rows as expected."""
    left, out = _array(op, 0), next(leaves(op.shape))
    stated = map(expected_rows, scopes(op.op_name))
    rows = next((rows for rows in stated if rows is not None), left.dims[0])
    return _product(op, 2.0 * rows * (out.dims[1] if len(out.dims) == 3 else left.dims[1]) * out.dims[-1])


def _chunks(op: Op) -> Product:
    """Products of chunks with states and with each other, forward or backward, of operands [chunks, heads, ...]."""
    (chunks, heads, size, key), value = _array(op, 0).dims, _array(op, 2).dims[3]
    delta = len(op.operands) == _DELTA_OPERANDS
    of_state = (3 if delta else 2) * key * value
    return _product(op, 2.0 * chunks * heads * size * (of_state + size * value))


def _block_scaled(op: Op) -> Product:
    """Quantized values [batch, m, k] times [batch, n, k], with scales."""
    return _product(op, 2.0 * prod(_array(op, 0).dims) * _array(op, 1).dims[-2])


def _seen_pairs(op: Op, config: Mapping[str, Any], queries: int, keys: int) -> int:
    """(query, key) pairs of one row and head that cuDNN's mask keeps, documents not counted: they come with a batch."""
    mask, window = config.get("mask_type", "NO_MASK"), int(config.get("sliding_window_length", 0))
    if mask == "NO_MASK" and not window:
        return queries * keys
    if mask not in ("CAUSAL", "PADDING_CAUSAL"):
        raise ProgramError(f"attention mask {mask} of {op.name} is not known", line=op.line)
    seen = (min(query + 1, keys) - max(0, query + 1 - window if window else 0) for query in range(queries))
    return sum(max(0, count) for count in seen)


def arithmetic(op: Op, left: ArrayShape, right: ArrayShape, algorithm: str, precisions: Sequence[str]) -> str:
    """The type in which a product multiplies. Raises `ProgramError` if it cannot be determined.

    float32 goes through the tensor cores as TF32, unless the algorithm or a precision above the default forbids it.
    """
    if algorithm not in _UNSET:
        kind = algorithm.lower().removeprefix("alg_").split("_")[1:2]
        if not kind or kind[0] not in _ALGORITHMS:
            raise ProgramError(f"dot algorithm {algorithm} of {op.name} is not known", line=op.line)
        return _ALGORITHMS[kind[0]]
    if left.dtype.startswith("f8") and right.dtype.startswith("f8"):
        return "float8"
    if left.dtype != right.dtype or left.dtype not in (*_TYPES, "f32"):
        raise ProgramError(f"{op.name} multiplies {left.dtype} with {right.dtype}", line=op.line)
    if left.dtype == "f32":
        exact = any(precision.strip().upper() in ("HIGH", "HIGHEST") for precision in precisions)
        return "float32" if exact else "tensorfloat32"
    return _TYPES[left.dtype]


def _product(op: Op, flops: float, right: int = 1, algorithm: str = "", precisions: Sequence[str] = ()) -> Product:
    """A product of the first operand and operand number `right`."""
    kind = arithmetic(op, _array(op, 0), _array(op, right), algorithm, precisions)
    return Product(flops, flops if recomputed(op.op_name) else 0.0, kind)


def _results(op: Op) -> int:
    """Elements of the result."""
    return next(leaves(op.shape)).elements


def _array(op: Op, place: int) -> ArrayShape:
    shape = op.operands[place].shape
    if not isinstance(shape, ArrayShape):
        raise ProgramError(f"operand {place} of {op.name} is a tuple", line=op.line)
    return shape


def _section(op: Op, key: str) -> Mapping[str, Any]:
    config = op.config
    if key not in config:
        raise ProgramError(f"{op.name} has no {key}", line=op.line)
    return config[key]


_CALLS = {
    r"__cublas\$(gemm|lt\$matmul(\$f8)?)$": _gemm,
    r"__cudnn\$fmha": _attention,
    r"__cudnn\$blockScaledDot$": _block_scaled,
}
"""Rules of XLA's custom calls, by pattern of the target."""
_KERNELS = {"grouped_matmul_of_": _grouped, "tiled_matmul": _grouped, "linear_attention_": _chunks}
"""Rules of the kernels of `pallas_kernels`, by pattern of the name."""

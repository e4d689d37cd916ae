"""Floating-point work of matrix products: dots, alone or in fusions, cuBLAS calls, cuDNN attention, our kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from jaxpar.compiler.program.hlo.records import ArrayShape, Module, Op, ProgramError, leaves
from jaxpar.compiler.program.scopes import recomputed, scopes
from pallas_kernels.attention.work import BACKWARD, Work
from pallas_kernels.grouped_matmul.work import expected_rows


class Matmul(NamedTuple):
    """The shape of `batch` products [m, k] x [k, n], as `cost.operations.Device.matmul` times them."""

    m: float
    n: int
    k: float
    batch: int = 1
    """Products, or groups of a grouped matmul; all of them share its rows, which are `m`, or `k` of a gradient."""
    out_bytes: float = 2
    """Bytes of a number of the output; twice as many where it is added to what is there."""
    grouped: bool = False
    gradient: bool = False
    """Whether a grouped matmul makes the gradients of the groups' matrices."""


class Attention(NamedTuple):
    """The shape of a launch of attention, as `cost.operations.Device.flash` times it."""

    kernels: str
    """The name of the attention implementation."""
    rows: int
    heads: int
    queries: int
    keys: float
    """That a query sees, on average."""
    width: int
    value_width: int
    backward: float
    """The part of the backward's FLOPs that the launch has; 0 of a forward."""


@dataclass(frozen=True)
class Product:
    """The work of one matrix product, or of one fused attention, per execution of its op."""

    flops: float
    """A multiplication and an addition count as two."""
    recomputed_flops: float
    """FLOPs among them that repeat work of the forward pass, or of another kernel of the same backward."""
    arithmetic: str
    """`float32`, `tensorfloat32`, `bfloat16`, `float16`, `float8` or `float64`."""
    shape: Matmul | Attention | None
    """None of products of linear attention, which are timed by their FLOPs."""


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
SPLIT_MOSAIC = "mosaic_deterministic"
"""The implementation whose launches for queries, and for keys and values, are Mosaic kernels."""
_DELTA_OPERANDS = 8
"""Operands of kernels of `pallas_kernels.linear_attention` with the delta rule, which without it have one less."""


def products(module: Module, op: Op, *, attention: str | None = None) -> Iterator[Product]:
    """The matrix products that one execution of `op` computes; of a fusion, those inside it.

    None of one whose work is not known, which goes into `module.unknown`.

    Args:
        module: The program.
        op: The op.
        attention: The implementation that all attention of the run has, where another may stand in for it; None takes
            launches of our kernels as they are. For `cudnn` they count as if one launch made all gradients, of values
            as wide as keys: what a launch for keys and values repeats beside a launch for queries is not counted.
    """
    if op.opcode == "fusion":
        for inner in module.body(op).ops:
            yield from products(module, inner, attention=attention)
        return
    try:
        product = _product_of(op, attention)
    except ProgramError:
        types = " and ".join(leaf.dtype for operand in op.operands for leaf in leaves(operand.shape))
        module.unknown.operation(f"{op.opcode} {op.target or f'of {types}'}", op.name)
    else:
        yield from () if product is None else (product,)


def _product_of(op: Op, attention: str | None) -> Product | None:
    """The work of an op that is not a fusion; None where it multiplies nothing."""
    if op.opcode == "dot":
        return _dot(op)
    if op.opcode != "custom-call" or _MOVING.fullmatch(op.target):
        return None
    ours = _OURS.fullmatch(op.target)
    if ours and (work := next(filter(None, map(Work.named, scopes(op.op_name))), None)) is not None:
        return _attention_kernel(op, work, attention)
    rules = _KERNELS if ours else _CALLS
    for pattern, rule in rules.items():
        if re.search(pattern, op.op_name) if ours else re.match(pattern, op.target):
            return rule(op)
    raise ProgramError(f"the work of custom call {op.target} ({op.name}) is not known", line=op.line)


def _dot(op: Op) -> Product:
    sides = [[list(op.dims_of(f"{side}_{kind}_dims")) for kind in ("contracting", "batch")] for side in ("lhs", "rhs")]
    precisions = op.attributes.get("operand_precision", "").strip("{}").split(",")
    return _product(op, _matmul(op, sides[0], sides[1]), 1, op.attributes.get("algorithm", ""), precisions)


def _gemm(op: Op) -> Product:
    config = _section(op, "gemm_backend_config")
    dims, precision = config["dot_dimension_numbers"], config.get("precision_config", {})
    sides = [
        [list(map(int, dims.get(f"{side}_{kind}_dimensions", ()))) for kind in ("contracting", "batch")]
        for side in ("lhs", "rhs")
    ]
    asked = precision.get("algorithm", ""), precision.get("operand_precision", [])
    return _product(op, _matmul(op, sides[0], sides[1], adds=bool(config.get("beta", 0))), 1, *asked)


def _matmul(op: Op, left: Sequence[Sequence[int]], right: Sequence[Sequence[int]], adds: bool = False) -> Matmul:
    """The shape of a product of two arrays, by the dims of each that are contracted and of the batch."""
    sizes = _array(op, 0).dims
    rest = [
        prod(size for dim, size in enumerate(_array(op, operand).dims) if all(dim not in dims for dims in side))
        for operand, side in enumerate((left, right))
    ]
    contracted, batch = (prod(sizes[dim] for dim in dims) for dims in left)
    return Matmul(rest[0], rest[1], contracted, batch, _out_bytes(op, adds))


def _out_bytes(op: Op, adds: bool = False) -> float:
    return next(leaves(op.shape)).bits / 8 * (2 if adds else 1)


def _attention(op: Op) -> Product:
    """cuDNN's attention: two products forward; backward five, of which one repeats the scores."""
    config = _section(op, "cudnn_fmha_backend_config")
    batch, heads, queries, keys = (int(size) for size in config["intermediate_tensor_shape"]["dimensions"])
    per_head = _seen_pairs(op, config, queries, keys)
    pairs, backward = batch * heads * per_head, "Backward" in op.target
    query, value = _array(op, 0), _array(op, 2)
    of_scores, of_values = 2.0 * pairs * query.dims[-1], 2.0 * pairs * value.dims[-1]
    kind = "float8" if query.dtype.startswith("f8") else arithmetic(op, query, query, "", [])
    widths = query.dims[-1], value.dims[-1]
    shape = Attention("cudnn", batch, heads, queries, per_head / queries, *widths, float(backward))
    if backward:
        return Product(3 * of_scores + 2 * of_values, of_scores, kind, shape)
    flops = of_scores + of_values
    return Product(flops, flops if recomputed(op.op_name) else 0.0, kind, shape)


def _attention_kernel(op: Op, work: Work, attention: str | None) -> Product:
    """Our attention, of arrays [batch, tokens, heads, width]."""
    query, key, value = (_array(op, index) for index in range(3))
    batch, queries, heads, width = query.dims
    per_head, split = work.pairs(queries, key.dims[1]), work.repeated and not {"dq", "dk"} <= {*work.products}
    kernels = attention or ("triton" if "triton" in op.target else SPLIT_MOSAIC if split else "mosaic")
    value_width = width if attention == "cudnn" else value.dims[-1]
    flops_of = lambda names: {name: work.flops(name, batch * heads * per_head, width, value_width) for name in names}
    each, backward = flops_of(work.products), sum(flops_of(BACKWARD).values())
    if split and attention == "cudnn":  # only one of two launches counts the repeated products
        each = {name: each[name] for name in work.products if "dq" in work.products or name not in work.repeated}
    elif split:
        backward += sum(flops_of(("scores", "slopes")).values())
    flops = sum(each.values())
    again = flops if recomputed(op.op_name) else sum(each.get(name, 0.0) for name in work.repeated)
    part = flops / backward if work.repeated else 0.0
    shape = Attention(kernels, batch, heads, queries, per_head / queries, width, value.dims[-1], part)
    return Product(flops, again, arithmetic(op, query, key, "", []), shape)


def _grouped(op: Op) -> Product:
    """Rows times the matrices of their groups, or one matrix, or gradients of these; of as many rows as expected."""
    left, right, out = _array(op, 0), _array(op, 1), next(leaves(op.shape))
    stated = map(expected_rows, scopes(op.op_name))
    rows = next((rows for rows in stated if rows is not None), left.dims[0])
    if len(out.dims) == 3:
        adds = any(operand.shape == out for operand in op.operands)
        return _product(op, Matmul(out.dims[1], out.dims[2], rows, out.dims[0], _out_bytes(op, adds), True, True))
    groups = right.dims[0] if len(right.dims) == 3 else 0
    return _product(op, Matmul(rows, out.dims[-1], left.dims[1], groups or 1, _out_bytes(op), groups > 0))


def _chunks(op: Op) -> Product:
    """Products of chunks with states and with each other, forward or backward, of operands [chunks, heads, ...]."""
    (chunks, heads, size, key), value = _array(op, 0).dims, _array(op, 2).dims[3]
    delta = len(op.operands) == _DELTA_OPERANDS
    of_state = (3 if delta else 2) * key * value
    flops = 2.0 * chunks * heads * size * (of_state + size * value)
    kind = arithmetic(op, _array(op, 0), _array(op, 1), "", ())
    return Product(flops, flops if recomputed(op.op_name) else 0.0, kind, None)


def _block_scaled(op: Op) -> Product:
    """Quantized values [batch, m, k] times [batch, n, k], with scales."""
    *batch, m, k = _array(op, 0).dims
    return _product(op, Matmul(m, _array(op, 1).dims[-2], k, prod(batch), _out_bytes(op)))


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


def _product(op: Op, shape: Matmul, right: int = 1, algorithm: str = "", precisions: Sequence[str] = ()) -> Product:
    """A product of the first operand and operand number `right`."""
    kind = arithmetic(op, _array(op, 0), _array(op, right), algorithm, precisions)
    flops = 2.0 * shape.m * shape.n * shape.k * (1 if shape.grouped else shape.batch)
    return Product(flops, flops if recomputed(op.op_name) else 0.0, kind, shape)


def _array(op: Op, index: int) -> ArrayShape:
    shape = op.operands[index].shape
    if not isinstance(shape, ArrayShape):
        raise ProgramError(f"operand {index} of {op.name} is a tuple", line=op.line)
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
_KERNELS = {"grouped_matmul_of_": _grouped, "tiled_matmul_of_": _grouped, "linear_attention_": _chunks}
"""Rules of the kernels of `pallas_kernels`, by pattern of the name."""

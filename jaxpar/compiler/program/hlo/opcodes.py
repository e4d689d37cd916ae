"""The opcodes and attributes of HLO that the records know, and what each opcode does to the costs.

An opcode is here if there is a rule for what it costs; others, such as convolutions, count as memory traffic.
"""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


BITS = {
    "pred": 8, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "s32": 32, "u32": 32, "s64": 64, "u64": 64,
    "f4e2m1fn": 4, "f8e3m4": 8, "f8e4m3": 8, "f8e4m3fn": 8, "f8e4m3fnuz": 8, "f8e4m3b11fnuz": 8, "f8e5m2": 8,
    "f8e5m2fnuz": 8, "f8e8m0fnu": 8, "bf16": 16, "f16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128,
    "token": 0, "opaque": 0,
}  # fmt: skip
"""Bits of an element of each dtype. A `pred` takes a byte."""

FREE = _words(
    "parameter constant get-tuple-element tuple bitcast after-all add-dependency opt-barrier partition-id replica-id "
    "get-dimension-size domain"
)
"""Runs no kernel worth counting."""

ELEMENTWISE = _words(
    "abs acos acosh add and asin asinh atan atan2 atanh cbrt ceil clamp compare complex convert cosine cosh "
    "count-leading-zeros divide erf exponential exponential-minus-one floor imag is-finite log log-plus-one logistic "
    "maximum minimum mulhi multiply negate not or popcnt power real reduce-precision remainder round-nearest-afz "
    "round-nearest-even rsqrt select shift-left shift-right-arithmetic shift-right-logical sign sine sinh sqrt "
    "stochastic-convert subtract tan tanh xor"
)
"""One operation per element of the result."""

REDUCTIONS = _words("reduce reduce-window")
"""About one operation per element of the input."""

MOVES = _words(
    "bitcast-convert broadcast concatenate copy dynamic-slice dynamic-update-slice gather iota pad reshape reverse "
    "rng-bit-generator rng-get-and-update-state scatter slice sort topk transpose"
)
"""Moves or orders data; its time is that of the memory."""

CONTROL = _words("while conditional call")
"""Runs other computations, which are counted by themselves."""

COLLECTIVES = _words(
    "all-gather all-reduce all-to-all collective-broadcast collective-permute ragged-all-to-all reduce-scatter"
)
"""Moves data between devices."""

CHANNEL_STARTS = _words("send recv")
"""Point-to-point transfers; `send-done` and `recv-done` end them."""

WORK = ELEMENTWISE | REDUCTIONS | MOVES | _words("dot fusion custom-call")
"""Runs a kernel on the device."""

PLAIN = FREE | WORK | CONTROL | COLLECTIVES | CHANNEL_STARTS

_HALVES = ("-start", "-update", "-done")


def wrapped_opcode(opcode: str) -> tuple[str, str]:
    """What an asynchronous opcode wraps, and which half it is: `all-gather-start` gives (`all-gather`, `start`).

    The generic `async-start` gives (`async`, `start`); a plain opcode, or one that is not known, itself and the empty
    string.
    """
    for half in _HALVES:
        base = opcode.removesuffix(half)
        if base != opcode and (base in PLAIN - FREE or base == "async"):
            return base, half[1:]
    return opcode, ""


def known(opcode: str) -> bool:
    """Whether there are rules for `opcode`."""
    base, half = wrapped_opcode(opcode)
    return bool(half) or base in PLAIN


CALLING = ("calls", "to_apply", "body", "condition", "true_computation", "false_computation", "called_computations",
           "branch_computations")  # fmt: skip
"""Attributes that name computations."""

ATTRIBUTES = frozenset(CALLING) | _words(  # any op
    "sharding frontend_attributes control-predecessors metadata backend_config origin original_value statistics "
    "result_accuracy index dimensions "
    # shapes and data movement
    "slice dynamic_slice_sizes iota_dimension padding offset_dims collapsed_slice_dims start_index_map "
    "operand_batching_dims start_indices_batching_dims index_vector_dim slice_sizes indices_are_sorted unique_indices "
    "update_window_dims inserted_window_dims scatter_dims_to_operand_dims input_batching_dims "
    "scatter_indices_batching_dims window is_stable k largest "
    # arithmetic
    "direction type exponent_bits mantissa_bits lhs_contracting_dims rhs_contracting_dims lhs_batch_dims "
    "rhs_batch_dims operand_precision algorithm delta "
    # collectives and transfers
    "replica_groups channel_id use_global_device_ids constrain_layout source_target_pairs split_dimension mode "
    "is_host_transfer async_execution_thread async_group_id cross_program_prefetch_index is_cross_program_prefetch "
    # fusions and custom calls
    "kind output_to_operand_aliasing custom_call_target api_version operand_layout_constraints "
    "custom_call_has_side_effect schedule literal"
)
"""Attributes that an op may have."""

MODULE_ATTRIBUTES = _words(
    "is_scheduled input_output_alias buffer_donor entry_computation_layout alias_passthrough_params num_partitions "
    "replica_count allow_spmd_sharding_propagation_to_parameters allow_spmd_sharding_propagation_to_output "
    "frontend_attributes"
)
"""Attributes of the `HloModule` line."""

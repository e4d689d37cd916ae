"""The opcodes of HLO that are priced, by kind of cost.

An opcode is here if there is a rule for what it costs; others, such as convolutions, count as memory traffic.
"""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


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

CALL_OPCODES = "call", "call-start"
"""Runs one computation, waited for or not."""

COLLECTIVES = _words("all-gather all-reduce all-to-all collective-permute reduce-scatter")
"""Moves data between devices."""

CHANNEL_STARTS = _words("send recv")
"""Point-to-point transfers; `send-done` and `recv-done` end them."""

WORK = ELEMENTWISE | REDUCTIONS | MOVES | _words("dot fusion custom-call")
"""Runs a kernel on the device."""

PLAIN = FREE | WORK | CONTROL | COLLECTIVES | CHANNEL_STARTS

_HALVES = ("-start", "-update", "-done")


def wrapped_opcode(opcode: str) -> tuple[str, str]:
    """The opcode that an asynchronous one wraps, and its half: `all-gather-start` gives (`all-gather`, `start`).

    A plain opcode, or one that is not known, gives itself and the empty string.
    """
    for half in _HALVES:
        base = opcode.removesuffix(half)
        if base != opcode and base in PLAIN - FREE:
            return base, half[1:]
    return opcode, ""


def known(opcode: str) -> bool:
    """Whether there are rules for `opcode`."""
    base, half = wrapped_opcode(opcode)
    return bool(half) or base in PLAIN


CALLING = ("calls", "to_apply", "body", "condition", "true_computation", "false_computation", "called_computations",
           "branch_computations")  # fmt: skip
"""Attributes that name computations."""

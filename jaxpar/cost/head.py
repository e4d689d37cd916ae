"""Seconds of the embedding and of the output head with its loss, for one microbatch on one device."""

from __future__ import annotations

from functools import lru_cache

from jaxpar.cost.layer_case import LayerCase
from jaxpar.cost.layer_messages import LayerMessages
from jaxpar.cost.mechanisms import Mechanisms
from jaxpar.cost.messages import Network
from jaxpar.cost.operations import Device
from jaxpar.cost.work import Work

PADDED = 64
"""Multiple to which a rank's part of the vocabulary is padded: odd ones would be slow (`operations.ALIGNED`)."""


@lru_cache(maxsize=50_000)
def head_time(
    case: LayerCase, vocab: int, device: Device, network: Network, does: Mechanisms, ends: int = 1
) -> tuple[Work, Work]:
    """Output head and loss, forward and backward: the head's matmul, and the logits in memory.

    Bytes per logit. Forward: written (2), read and written as float32 (6), read for maximum, sum and label (8);
    backward: read and written as the gradient (8), as 16 bits (6) and read by two matmuls, whose traffic they count.
    A compiler fuses the casts into the reductions: 6 and 6. A frozen head and embedding have no gradients.
    Of `ends` pipeline ranks that share the vocabulary each has a part of the logits, of all tokens.
    """
    columns = -(-vocab // (case.tensor * ends * PADDED)) * PADDED
    logits = float(case.tokens) * columns
    own, own_back = (6.0, 6.0) if does.compiled else (16.0, 14.0)
    item = case.item
    forward = device.matmul(case.tokens, columns, case.embed, 1, item, item)
    inward = device.matmul(case.tokens, case.embed, columns, 1, item, item)
    weight = device.matmul(columns, case.embed, case.tokens, 1, 8 if does.fused_accumulation else item, item)
    messages = LayerMessages(case, network, does)
    gather = messages.half if case.sequence_parallel else 0.0
    back = messages.half if case.sequence_parallel else messages.full
    embed = device.bytes_seconds(case.between * 4 + case.between * (0 if case.frozen else 10))
    return (
        Work(forward, 0.0, device.bytes_seconds(own * logits) + embed / 2, gather, 0.0, 12),
        Work(
            inward if case.frozen else inward + weight,
            0.0,
            device.bytes_seconds(own_back * logits) + embed / 2,
            back,
            0.0,
            12,
        ),
    )

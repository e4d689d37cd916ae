"""Seconds of the embedding and of the output head with its loss, for one microbatch on one device."""

from __future__ import annotations

from functools import lru_cache

from jaxpar.cost.layer_case import LayerCase
from jaxpar.cost.layer_messages import LayerMessages
from jaxpar.cost.messages import Network
from jaxpar.cost.operations import Device
from jaxpar.cost.work import Work

PADDED = 64
"""Multiple to which a rank's part of the vocabulary is padded: odd ones would be slow (`operations.ALIGNED`)."""


PASSES = 6.0
"""Bytes that the loss moves for each logit, forward and again backward, beside the matmuls' own traffic: the compiler
fuses casts to float32 into the reductions."""


@lru_cache(maxsize=50_000)
def head_time(case: LayerCase, vocab: int, device: Device, network: Network, ends: int = 1) -> tuple[Work, Work]:
    """Output head and loss, forward and backward: the head's matmul, and the logits in memory.

    A frozen head and embedding have no gradients. Of `ends` pipeline ranks that share the vocabulary each has a part of
    the logits, of all tokens.
    """
    columns = -(-vocab // (case.tensor * ends * PADDED)) * PADDED
    item = case.item
    forward = device.matmul(case.tokens, columns, case.embed, 1, item, item)
    inward = device.matmul(case.tokens, case.embed, columns, 1, item, item)
    weight = 0.0 if case.frozen else device.matmul(columns, case.embed, case.tokens, 1, 8, item)
    messages = LayerMessages(case, network)
    embed = device.bytes_seconds(case.between * 4 + case.between * (0 if case.frozen else 10))
    other = device.bytes_seconds(PASSES * float(case.tokens) * columns) + embed / 2
    return Work(forward, 0.0, other, messages.half), Work(inward + weight, 0.0, other, messages.half)

"""Mechanisms that training software has and lacks, and those of jaxpar. Switches only: a mechanism has no numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Attention = Literal["scores", "flash1", "flash2", "flash3", "flash2_split", "flash3_split", "cudnn", "blocks"]
"""A generation of attention kernels.

`scores`: batched matmuls with all scores in memory, masked ones too. `flash1`: one kernel, masked tiles skipped
(FlashAttention, and its port to Triton). `flash2`: FlashAttention-2, whose warps share work without communication.
`flash3`: a kernel written for Hopper (FlashAttention-3, cuDNN 9); on Ampere the same as `flash2`. `_split`: with a
backward of two launches, seven matmuls in place of five. `cudnn`: `flash3` as jaxpar calls it, with values as wide as
keys (zeros are added to narrower ones, of latent attention). `blocks`: plain JAX, whose float32 scores pass through
memory block by block."""

BACKENDS: dict[str, Attention] = {
    "mosaic": "flash3", "mosaic_deterministic": "flash3_split", "triton": "flash2_split", "cudnn": "cudnn",
    "xla": "blocks",
}  # fmt: skip
"""What each implementation of `pallas_kernels.attention` is timed as. Triton's kernels reach what FlashAttention-2 does
on Hopper (docs/kernels.md)."""


@dataclass(frozen=True)
class Mechanisms:
    """The mechanisms of a training system that decide how its time is spent."""

    attention: Attention = "flash2"
    """The kernels of attention; of jaxpar's own runs those of the implementation that is chosen (`BACKENDS`)."""
    dropout: bool = False
    """Whether attention and both residual branches drop out, as GPT-3's do."""
    fused_elementwise: bool = True
    """Whether norms, rotary embeddings and activation functions are one kernel each."""
    compiled: bool = False
    """Whether a compiler or a graph launches kernels, so that the device never waits for the host."""
    overlap_data: Literal["none", "gradients", "both"] = "none"
    """Which messages of data parallelism without sharded weights run beside compute: the reduction of gradients under
    the backward, and the gather of updated weights under the forward of the next step."""
    prefetch_weights: bool = True
    """Whether the gather of a layer's sharded weights runs under the layer before, and the reduction of its gradients
    under the layer after (FSDP)."""
    gather_again: bool = False
    """Whether sharded weights are gathered once for recomputation and once more for the backward."""
    overlap_tensor: bool = False
    """Whether gathers and scatters over tensor ranks are cut up and run beside the matmuls next to them."""
    overlap_weight_gradient: bool = False
    """Whether the sum of an input's gradient over tensor ranks runs beside the gradient of the weight."""
    overlap_context: bool = False
    """Whether keys and values travel over context ranks beside compute."""
    overlap_exchange: bool = False
    """Whether tokens travel to the ranks of their experts, and back, in slices beside the experts' products."""
    overlap_pipe: bool = False
    """Whether a rank computes while it sends to the next stage."""
    shared_cards: bool = True
    """Whether a message of data parallelism leaves a host over the network cards of all its ranks there, each byte once
    (rings), rather than every rank fetching all that it lacks over its own card."""
    lockstep: bool = False
    """Whether one program with uniform ticks runs on all pipeline ranks, rather than each continuing when it can."""
    exposed_as_compiled: bool = False
    """Whether it waits for the share of messages that its compiled programs do not hide
    (`planner.step_time.exposed`), where compute could hide them all."""
    padded: bool = False
    """Whether all chunks of a pipeline take as long as the longest in every layout. Of no generation here: tests set it
    for comparison. `chunks.why_padded` reports what jaxpar's own program pads."""
    fused_accumulation: bool = True
    """Whether matmuls add weight gradients to the accumulator themselves."""
    gradient_type: Literal["float32", "16-bit"] = "float32"
    """Type in which gradients are reduced. Megatron-LM reduces those of float16 weights as they are, and adds up those
    of bfloat16 weights in float32."""
    recompute_last_matmul: bool = True
    """Whether full recomputation runs the layer's last matmul again, whose result is not needed. PyTorch stops early
    since 2.1, where checkpoints are not reentrant."""
    pure_16bit: bool = False
    """Whether master weights and moments also have 16 bits."""
    context_order: Literal["balanced", "contiguous"] = "balanced"
    """Whether context ranks hold parts of equal causal work, or contiguous ones, of which the last sees all keys and
    the others wait for it."""
    float8_scales: Literal["tensor", "row"] = "tensor"
    """Whether a float8 matmul has a scale for each operand or for each row and column, for which cuBLAS has no fast
    kernel (pytorch/torchtitan issue 1207)."""


JAXPAR = Mechanisms(
    attention="flash3", compiled=True, overlap_data="none", prefetch_weights=True, overlap_tensor=False,
    overlap_exchange=True, overlap_pipe=True, lockstep=True, exposed_as_compiled=True, fused_accumulation=True,
    recompute_last_matmul=False,
)  # fmt: skip
"""The mechanisms of jaxpar."""

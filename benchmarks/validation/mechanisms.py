"""Mechanisms of other training software, by generation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jaxpar.cost.mechanisms import JAXPAR, Mechanisms


@dataclass(frozen=True)
class Software(Mechanisms):
    """The mechanisms of a generation of software, with that which decides its layouts rather than their time."""

    selective: Literal["attention", "operations"] = "attention"
    """Work that selective recomputation runs again: attention itself (arXiv:2205.05198), or all but attention and every
    second matmul (torchtitan's selection by operation)."""


NEUTRAL = "unknown"
"""The generation that stands for software that is not known."""

GENERATIONS: dict[str, Mechanisms] = {
    NEUTRAL: Software(
        attention="flash2", fused_elementwise=False, fused_accumulation=False, overlap_data="gradients",
    ),
    "megatron-2021": Software(attention="scores", dropout=True, fused_accumulation=False),
    "megatron-2022": Software(
        attention="scores", dropout=True, overlap_weight_gradient=True
    ),
    "megatron-deepspeed": Software(
        attention="scores", dropout=True, fused_accumulation=False, gradient_type="16-bit",
        overlap_weight_gradient=True,
    ),
    "deepspeed-zero3": Software(
        attention="scores", dropout=True, fused_accumulation=False, gradient_type="16-bit", shared_cards=False,
        gather_again=True,
    ),
    "megatron-2024": Software(
        attention="flash2", fused_elementwise=False, overlap_tensor=True, overlap_weight_gradient=True,
        overlap_pipe=True, overlap_context=True,
    ),
    "megatron-core": Software(
        attention="flash3", overlap_data="both", overlap_tensor=True, overlap_pipe=True, overlap_context=True,
        overlap_weight_gradient=True,
    ),
    "kuaishou": Software(
        attention="flash2", overlap_data="both", overlap_tensor=True, overlap_pipe=True, overlap_context=True,
        overlap_weight_gradient=True,
    ),
    "llm-foundry": Software(
        attention="flash1", fused_accumulation=False, gradient_type="float32", recompute_last_matmul=False
    ),
    "torchtitan": Software(
        attention="flash2", fused_elementwise=False, fused_accumulation=False, gradient_type="float32",
        recompute_last_matmul=False, context_order="contiguous", selective="operations", overlap_pipe=True,
    ),
    "jaxpar": JAXPAR,
}  # fmt: skip
"""Generations of software by name."""

"""How other software spends a step otherwise than jaxpar, priced with the same costs.

A mechanism is a documented fact of a version, cited in `SYSTEMS`, or stated by a row. Nothing is fitted to the runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from jaxpar.config.counting import head_dim
from jaxpar.config.errors import UserError
from jaxpar.config.kinds import kind_models
from jaxpar.config.schema import ModelConfig
from jaxpar.config.spelling import join_or, quoted
from jaxpar.cost.head import head_time
from jaxpar.cost.layer import layer_time
from jaxpar.cost.layout import Layout
from jaxpar.cost.work import total
from jaxpar.hardware.cluster import Cluster
from jaxpar.planner.step_time.model import Steps
from jaxpar.planner.step_time.step import Step

EAGER = {True: 2.7, False: 1.5}
"""Memory traffic of elementwise work in kernels of one operation each, relative to fused ones: of models with RMSNorm,
rotation and SwiGLU, and with LayerNorm and GELU. Counted from the operations; that each is a kernel is assumed."""
FLASH1 = 2.0
"""Seconds of the first FlashAttention over those of the second (arXiv:2307.08691, abstract)."""


@dataclass(frozen=True)
class Mechanisms:
    """The ways in which a system differs from jaxpar. No system copies weights and gradients from
    and into stacks (`slices` of a step), nor has the loss in tiles. The defaults are assumed of software that `SYSTEMS`
    does not know."""

    attention: Literal["hopper", "flash2", "flash1", "scores"] = "flash2"
    """Kernels written for Hopper; FlashAttention-2 or 1; or matmuls with all scores in memory and GPT-3's dropout."""
    eager: bool = False
    """Whether no compiler and no kernels of its own fuse elementwise work."""
    recompute_last: bool = False
    """Whether full recomputation runs the layer's last matmul again, whose output the backward does not need."""
    added_bytes: float = 0.0
    """Bytes that move for each weight where a kernel apart adds its gradient to those of other microbatches."""
    overlap_data: bool = False
    """Whether gradients are reduced beside the last backward, and weights gathered beside the first forward."""
    overlap_tensor: bool = False
    """Whether messages of tensor ranks run in chunks beside the matmuls next to them."""
    overlap_context: bool = False
    """Whether keys and values travel beside attention."""
    row_scales: bool = False
    """Whether FP8 has a scale for each row, for which cuBLAS had no fast kernel: products as slow as in 16 bits."""
    waits_for_weights: bool = False
    """Whether a layer waits for its sharded weights, in the forward, the recomputation and the backward."""


_ADDS_APART = Mechanisms(recompute_last=True, added_bytes=6.0)
SYSTEMS: tuple[tuple[str, Mechanisms], ...] = (
    # arXiv:2104.04473; gradient accumulation was fused into matmuls in 2022 (--no-gradient-accumulation-fusion).
    ("Megatron-LM (2021)", _ADDS_APART),
    ("Megatron-LM (2022)", Mechanisms(recompute_last=True)),  # arXiv:2205.05198
    # arXiv:2201.11990; gradients of bfloat16 are added in float32.
    ("Megatron-DeepSpeed", replace(_ADDS_APART, added_bytes=10.0)),
    # Each gather waits for the one before (DeepSpeed#1188), three times with recomputation (arXiv:2104.07857, 4.1).
    ("DeepSpeed ZeRO-3", replace(_ADDS_APART, waits_for_weights=True)),
    # --tp-comm-overlap, and no --overlap-grad-reduce (examples/atc24/pretrain_llama_using_origin_megatron.sh).
    ("Megatron-Kwai", Mechanisms(recompute_last=True, overlap_tensor=True, overlap_context=True)),
    ("Megatron-LM 2024", Mechanisms(recompute_last=True)),
    # README of core_r0.8.0: --overlap-grad-reduce --overlap-param-gather --tp-comm-overlap; TransformerEngine's cuDNN.
    ("Megatron-Core", Mechanisms("hopper", overlap_data=True, overlap_tensor=True, overlap_context=True)),
    # attn_impl: triton, a port of the first FlashAttention; checkpoints are not reentrant (scripts/train/yamls).
    ("llm-foundry", Mechanisms("flash1", eager=True)),
    # SDPA's FlashAttention-2, but on B200 (torchtitan#1196).
    ("torchtitan", Mechanisms(eager=True)),
)
"""Mechanisms by the first words of a framework's name, with their sources."""

STATED: Mapping[str, Mapping[str, Any]] = {
    "compiled=1": {"eager": False}, "fused_elementwise=1": {"eager": False},
    "overlap_tensor=1": {"overlap_tensor": True}, "float8_scales=row": {"row_scales": True},
    "attention=flash3": {"attention": "hopper"},
    "recompute_last_matmul=1": {"recompute_last": True}, "recompute_last_matmul=0": {"recompute_last": False},
    "pure_16bit=1": {}, "gradient_type=16-bit": {}, "overlap_weight_gradient=0": {},
}  # fmt: skip
"""The values of the column `mechanisms`; the last three change no time here."""


def mechanisms_of(row: Mapping[str, str], place: str) -> Mechanisms:
    """The mechanisms of a row's software, changed by what the row states. Raises `UserError`."""
    name = row["framework"]
    does = next((does for start, does in SYSTEMS if name.startswith(start)), Mechanisms())
    if row["flash_attention"] == "0":
        does = replace(does, attention="scores")
    for part in filter(None, (row.get("mechanisms") or "").split(";")):
        if part not in STATED:
            raise UserError(f"{place}: mechanisms: expected {join_or(STATED)}, got {quoted(part)}")
        does = replace(does, **STATED[part])
    return does


def other_seconds(
    model: ModelConfig, sequence: int, batch: int, layout: Layout, cluster: Cluster, does: Mechanisms
) -> float:
    """Seconds of a step of software with these mechanisms: jaxpar's, and what differs. Bubble and stragglers grow with
    the work of microbatches."""
    if does.attention != "hopper":
        layout = replace(layout, attention=tuple((kind, "flash2") for kind in kind_models(model)))
    step = Steps(model, sequence, batch, cluster).step(layout)
    spent = step.spent_in(layout, step.pipeline(layout))
    layers = model.layers / layout.pipe
    more = step.microbatches * layers * _Layer(step, does).more - spent["slices"]
    on, ends = (step.where.vocab, step.where.device, step.where.network), layout.vocab_ranks
    head, others = total(head_time(step.case, *on, ends)), total(head_time(step.case, *on, ends, tiled=False))
    eager = (EAGER[model.norm == "rmsnorm"] - 1) * others.other if does.eager else 0.0
    more += (
        step.microbatches
        * (others.seconds - head.seconds + eager)
        / (1 if layout.shared_embed_and_head else layout.pipe)
    )
    grown = more / step.work.seconds
    hidden = 0.0
    if does.overlap_data and layout.zero < 3:
        # All but a layer's part, as far as one microbatch hides it.
        hidden = (1 - 1 / layers) * min(step.once["data"], (1 + grown) * step.work.seconds / step.microbatches)
    return sum(spent.values()) + more + grown * (spent["bubble"] + spent["stragglers"]) - hidden


class _Layer:
    """A layer of one microbatch: the seconds that other software takes more."""

    def __init__(self, step: Step, does: Mechanisms):
        (self.sort,) = step.passed  # rows have layers of one kind
        self.step, self.does, self.device, self.layout = step, does, step.where.device, step.layout
        self.time, self.case = step.layers.times[self.sort], step.layers.cases[self.sort]
        self.again = step.layers.again(step.layout.remat, step.slots)[self.sort]
        self.all = total([self.time.forward, self.time.backward, self.again])

    @property
    def more(self) -> float:
        """Seconds, below 0 where the other software is faster."""
        does = self.does
        seconds = self.attention() + self.device.bytes_seconds(does.added_bytes * self.case.trained)
        seconds += (EAGER[self.step.model.norm == "rmsnorm"] - 1) * self.all.other if does.eager else 0.0
        if does.recompute_last and self.layout.remat == "full":
            needed = set(self.time.made.values())
            seconds += sum(work.seconds for name, work in self.time.operations.items() if name not in needed)
        seconds += self.row_scales() if does.row_scales else 0.0
        seconds -= self.hidden() if does.overlap_tensor and self.layout.tensor > 1 else 0.0
        seconds -= self.all.context if does.overlap_context else 0.0
        if does.waits_for_weights:
            gather, scatter = self.step.messages.of_layers(self.case)
            seconds += (
                3 * gather
                + scatter
                - sum(run.seconds_by_kind.get("data", 0.0) for run in self.step.passed[self.sort][:2])
            )
        return seconds

    def attention(self) -> float:
        """Attention itself."""
        if self.does.attention == "scores":
            forward, backward = self.scores()
            return forward * (1 + (self.again.attention > 0)) + backward - self.all.attention
        return (FLASH1 - 1) * self.all.attention if self.does.attention == "flash1" else 0.0

    def scores(self) -> tuple[float, float]:
        """Attention with all scores in memory, masked ones too, and dropout of the layer, forward and backward.

        Bytes of a score: one kernel reads and writes the softmax (4; backward 6), one drops out and has a mask (5).
        Both residual branches drop out: 3 bytes a number forward, 5 backward (arXiv:2205.05198, section 4.1).
        """
        shape, device, item = self.case.shape, self.device, self.case.item
        batch, queries, keys = shape.rows * shape.model.heads // shape.tensor, self.case.part, shape.sequence
        scores, width = float(batch) * queries * keys, head_dim(shape.model)
        product = device.matmul(queries, keys, width, batch, item, item)
        back = device.matmul(queries, width, keys, batch, item, item)
        branches = 2.0 * self.case.tokens * self.case.embed
        forward = product + back + device.bytes_seconds(9.0 * scores + 3.0 * branches)
        return forward, product + 3 * back + device.bytes_seconds(11.0 * scores + 5.0 * branches)

    def row_scales(self) -> float:
        """Products in 16 bits in place of FP8."""
        exact = layer_time(self.case.exact, self.device, self.step.network)
        forward = exact.forward.matmul / self.time.forward.matmul
        backward = exact.backward.matmul - self.time.backward.matmul
        return (forward - 1) * (self.time.forward.matmul + self.again.matmul) + backward

    def hidden(self) -> float:
        """Messages in as many chunks as there are tensor ranks, the first of which nothing hides, nor what is longer
        than the matmul beside it; those of the backward as those of the forward."""
        ranks, works = self.layout.tensor, self.time.operations.values()
        shown = sum(max(work.tensor / ranks, work.tensor - (1 - 1 / ranks) * work.matmul) for work in works)
        return (1 - shown / self.time.forward.tensor) * self.all.tensor

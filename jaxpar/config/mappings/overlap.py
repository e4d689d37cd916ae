"""The mapping `parallel.overlap`: what runs beside messages between devices, and how these are arranged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from jaxpar.config.bounds import CHUNKS, COLLECTIVES, LAYERS, at_least


@dataclass(frozen=True)
class OverlapConfig:
    """Work that runs beside messages between devices. `auto`, the default, takes the fastest compiled programs."""

    embedding_messages: Literal["auto", "table", "rows"] = "auto"
    """Messages of the embedding between the ranks that shard it under `zero` 2 and 3: the `table` and its
    gradient, which are gathered and reduce-scattered in full; or the `rows` of a microbatch's tokens and their
    gradients, which are exchanged. `auto` is `rows` on GPUs where these messages are expected to take less time
    (`docs/overlap.md`)."""
    state_messages: Literal["auto", "allgather", "ring", "pipelined"] = "auto"
    """Transport of mixers' states between context ranks (`docs/linear-attention.md`): all gather what the tokens of
    each do to a state (`allgather`); or each sends the state behind its tokens to the next, at once (`ring`) or in
    blocks (`pipelined`). `auto` is on GPUs what is expected to take less time, and `allgather` elsewhere."""
    shard_state_over_replicas: bool | Literal["auto"] = "auto"
    """Split master weights and optimizer state over replicas too, under `zero` 1, 2 or 3. Gradients are then
    reduce-scattered over replicas, and the next step gathers the new weights over replicas before its forward.
    `auto` does on GPUs under `zero: 3` where the ranks of a replica share its weights, without a pipeline,
    `precision.matmul` or state on the host (`docs/overlap.md`); the planner takes it as false, and with true has it in
    layouts with replicas."""
    layer_unroll: Annotated[int, at_least(1, LAYERS)] | Literal["auto"] = "auto"
    """Layers in a turn of the loop over layers (`unroll` of `jax.lax.scan`), where the next layer's weights are
    gathered meanwhile: with 2, layers take turns with two buffers, where 1 has these weights copied within the device.
    It takes the memory of a layer's weights, and longer to compile. `auto` is 2 on GPUs, but 1 where loops are
    short, with routers, beside copies to the host, and where there is no memory for more (`docs/overlap.md`)."""
    weight_prefetch: Literal["auto", "layer", "parts"] = "auto"
    """Gathers of the next layer's weights while a layer computes: wherever XLA's scheduler places that (`layer`),
    or so that those of attention have arrived before products of the feed-forward, or with context ranks of
    attention (`parts`). `auto` is `parts` on GPUs where context ranks exchange messages, or layers without
    `precision.matmul` are copied to and from the host, or have tensor ranks and `collectives_at_once` is above 1, or
    have none on GPUs before Hopper, and `layer` elsewhere (`docs/overlap.md`)."""
    collectives_at_once: Annotated[int, at_least(1, COLLECTIVES)] = 1
    """Collectives that XLA may have in flight on GPUs. With 2, gathers of weights from other nodes can run beside
    messages of tensor ranks inside a node. No GPU has run it (`docs/overlap.md`)."""
    tensor: Literal["auto", "plain", "ring"] = "auto"
    """Exchange of the sequence of a layer's matmuls with the other tensor ranks: `plain` gathers it before them and
    sums and scatters after them; `ring` passes parts from rank to rank while the parts at hand are multiplied; `auto`
    takes what is expected to be faster for each group of matmuls on the GPUs, and `plain` elsewhere
    (`docs/overlap.md`)."""
    experts: Literal["auto", "off"] = "auto"
    """Exchange of some tokens while the experts work on others; `off` makes `parallel.experts.slices: auto` one
    slice."""
    tensor_chunks: Annotated[int, at_least(1, CHUNKS)] | None = None
    """Chunks, with `tensor: ring`, into which the part of a rank is cut. Each passes round by itself, every second
    one the other way. Null takes 2 where they divide the part, else 1."""


OFF = OverlapConfig(
    embedding_messages="table", state_messages="allgather", shard_state_over_replicas=False, layer_unroll=1,
    weight_prefetch="layer", collectives_at_once=1, tensor="plain", experts="off",
)  # fmt: skip
"""The mapping that `parallel.overlap: off` stands for."""
ON_ANY_LAYOUT = ("embedding_messages", "state_messages", "layer_unroll", "weight_prefetch", "tensor", "experts")
"""Options of which every layout can have the value in `OFF`, and some layouts no other."""

"""The sections `parallel`, `precision`, `memory` and `attention`: how a step is laid out on devices."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class ParallelConfig:
    """The layout: the size of each mesh axis and how weights and state are sharded. One axis may be -1: the devices
    that remain."""

    pipe: int = 1
    """Pipeline stages."""
    replica: int = 1
    """Data parallelism with full copies of the weights (the outer level of HSDP)."""
    fsdp: int = 1
    """Data parallelism over which `zero` shards weights, gradients and optimizer state."""
    expert: int = 1
    """Expert parallelism; for dense weights it is another data-parallel axis."""
    context: int = 1
    """Context parallelism: the sequence is split, inside attention too."""
    tensor: int = 1
    """Tensor parallelism, with sequence parallelism between the matmuls."""
    zero: Literal[0, 1, 2, 3] = 3
    """What is sharded over fsdp, expert and context: 0 nothing, 1 optimizer state, 2 also gradients, 3 also weights."""
    microbatches: int = 1
    """Parts into which the batch of a step is split; gradients accumulate over them."""
    schedule: str = "auto"
    """Pipeline schedule: `gpipe`, `1f1b`, `interleaved`, `breadth-first`, `zb-uniform`, `zb-h1`, `zb-v`, `dualpipe-v`,
    `v-half`, or the path of a table (`.csv`); `auto` is `1f1b`. `python -m jaxpar.schedule` draws and compares them."""
    virtual_stages: int | None = None
    """Chunks of layers on each pipeline rank; null is the fewest that the schedule allows."""
    stage_layers: tuple[int, ...] | None = None
    """Layers of each chunk, in the order of the model; null makes them as equal as possible. Every chunk takes the
    memory of the longest one; on GPUs of one kind every rank also waits for it."""
    pipe_ends: Literal["last", "shared"] = "last"
    """Head and embedding under a pipeline: whole on each rank, used by the last and the first (`last`), or
    vocabulary-parallel over all pipeline ranks, which then share the work of the loss (`shared`)."""
    pipe_ticks: Literal["uniform", "branching"] = "uniform"
    """`uniform`: all ranks run the same program in each tick; `branching`: each rank runs only its own action, in the
    published order, which needs layers without permutes."""
    context_strategy: Literal["auto", "allgather", "ring", "ulysses", "usp"] = "auto"
    """How attention sees the other ranks' keys and values when `context` is above 1: `allgather` gathers them, `ring`
    passes them from rank to rank, `ulysses` exchanges sequence for heads, `usp` does that inside groups of neighbours
    and rings between the groups."""
    context_order: Literal["auto", "contiguous", "zigzag", "striped"] = "auto"
    """Which tokens of a row a context rank holds: one contiguous part (`contiguous`); two parts, one from each end
    (`zigzag`); or every n-th token, with n the number of ranks (`striped`). The latter two balance the work of a causal
    mask; `auto` takes `zigzag`, but `contiguous` where a window is shorter than a part, and where `ulysses` leaves
    nothing to balance."""
    ulysses: int | None = None
    """Context ranks in a group of `usp`; null takes the most ranks of a node among which the heads divide."""
    auto: bool = False
    """Plan the layout, and the activations that layers keep, for this machine when training starts; `parallel: auto`
    means the same. `python -m jaxpar.plan` plans for any cluster that is described."""


@dataclass(frozen=True)
class PrecisionConfig:
    """A dtype per role."""

    compute: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Matmuls and activations; float16 turns on dynamic loss scaling."""
    storage: Literal["float32", "bfloat16", "float16"] | None = None
    """Weights between their uses in a step, and on the wire when they are gathered; null means `compute`."""
    master: Literal["float32"] = "float32"
    """Weights that the optimizer updates, and that checkpoints hold."""
    gradient: Literal["float32", "bfloat16"] = "float32"
    """Accumulation and reduction of gradients."""
    moments: Literal["float32", "bfloat16", "int8"] = "float32"
    """How the optimizer's moments are stored between updates: `bfloat16` halves them; `int8` takes about 1 byte an
    element for the layers' matrices (8 bits in blocks with a scale each), with bfloat16 for embedding and head and
    float32 for norms and biases. Updates are computed in float32."""
    loss_scale: float = 65536.0
    """First loss scale under float16; halved after an overflow, doubled after `loss_scale_interval` good steps."""
    loss_scale_interval: int = 1000
    """Good steps before the loss scale doubles."""


@dataclass(frozen=True)
class MemoryConfig:
    """What happens to activations between forward and backward."""

    remat: (
        Literal["none", "full", "selective", "gemm_last", "auto"]
        | dict[str, str | int]
        | tuple[dict[str, str | int], ...]
    ) = field(default="gemm_last", hash=False)
    """`none` keeps every named activation, `full` only each layer's input; `gemm_last` drops what is recomputed without
    a matrix product (norms and the non-linearity), `selective` only what attention itself makes; `auto` takes the
    fastest of all maps that fit. Or a mapping with `save`, `recompute` or `offload` (to the host's pinned memory) by
    name, and `preset` for the names that it leaves out (by default `gemm_last`): `{preset: full, layer_input:
    offload}`. Or a list of such mappings, each with `layers: 0-15`, the layers of a chunk to which it applies
    (without a pipeline there is one chunk, the model). Names: `layer_input` (`save` or `offload`), `attention_input`,
    `query`, `key`, `value`, `attention_output`, `attention_lse`, `attention_residual`, `mlp_input`, `mlp_gate`,
    `mlp_up`, `mlp_activated`, `mlp_hidden`; with norms after the blocks `attention_projected`, `mlp_projected`. A name
    that only other models' layers have is ignored."""
    offload_fraction: float = 0.0
    """Share of the bytes that a chunk of layers keeps of a microbatch that is offloaded to the host's pinned memory
    between forward and backward: the first layers whole, and one in part."""
    offload_smallest: int = 1048576
    """Arrays of fewer bytes stay on the device under `memory.offload_fraction`."""
    host_limit: int | None = None
    """Bytes of the host's memory that may be used for each device: by activations that are offloaded, and by a state
    under `optimizer_offload: host`. Null divides the machine's memory among its devices; for a cluster that is only
    described, its `host_memory`."""
    optimizer_offload: Literal["none", "host", "file"] = "none"
    """Where master weights and moments are stored: `none` on the device, `host` in the host's pinned memory, `file` in
    files under `memory.offload_dir`. From host or files they pass through the device a piece at a time, at the end of
    each step; `memory.weights_offload` is for the weights of the step. Results are bit for bit the same, and so are
    checkpoints."""
    optimizer_resident: int = 0
    """Bytes of each device in which master weights and moments of some weights may stay under
    `optimizer_offload: host`; those of the others are offloaded."""
    weights_offload: Literal["none", "host"] = "none"
    """Where weights and gradients of layers are stored in a step: `none` on the device; under `host` those of the first
    layers are in the host's pinned memory: weights are fetched before their forward and again before their backward,
    and gradients are written to the host as soon as they are computed. It needs `optimizer_offload: host`. Losses and
    gradients are bit for bit the same (seen on CPU devices); the norm of the gradient is summed in another order, so
    its last bit may differ. What replicas have to sum is sent twice, for the norm and for the update."""
    weights_resident: int = 0
    """Bytes of each device in which weights and gradients of the last layers may stay under `weights_offload: host`;
    the room for the two layers that are being fetched or written back is not counted in it."""
    offload_dir: str | None = None
    """Folder of the files of `optimizer_offload: file`, on a disk of the machine, with room for master weights and
    moments; null puts them into the run's folder. They are not read by a later start, which writes new ones."""
    loss_tiles: int | None = None
    """Tiles of a microbatch's tokens that head and loss process one after the other, forward and backward, so that
    logits exist for one tile at a time; null makes tiles whose float32 logits take 1 GiB or less."""
    loss_backend: Literal["auto", "xla", "fused"] = "auto"
    """Head and loss: `xla` computes them in tiles; `fused` uses the kernel of `pallas_kernels`, which stores no logits
    but computes them twice. `auto` takes the kernel on GPUs for which a record shows that it was verified."""
    mlp_tiles: int | None = None
    """As `memory.loss_tiles`, for the feed-forward of each layer, whose hidden activations are then recomputed in the
    backward. Null makes tiles of about `model.embed` tokens where hidden activations are recomputed anyway (`remat:
    full`) and take more than 1 GiB in a layer, and one tile elsewhere."""


@dataclass(frozen=True)
class AttentionConfig:
    """Which implementation computes attention."""

    backend: Literal["auto", "flash", "mosaic", "mosaic_deterministic", "triton", "cudnn", "xla"] = "auto"
    """`flash` is the first of our GPU kernels that supports the run: `mosaic_deterministic` and `mosaic` (Hopper), of
    which only the first computes a gradient of queries that is bit for bit the same in every run, and `triton`; `cudnn`
    is cuDNN's, `xla` plain JAX, block by block, for every mask, dtype and platform. `auto` takes the first that
    supports the run, in an order that depends on the mask, and of our kernels only those that have been verified on
    such a GPU; a named one that does not support the run is an error. The plan reports where results are not the same
    bits in every run."""
    query_block: int = 512
    """Rows of queries in a block of the backend `xla`."""
    kv_block: int = 512
    """Rows of keys and values in a block of the backend `xla`."""

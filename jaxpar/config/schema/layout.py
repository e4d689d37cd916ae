"""The sections `parallel`, `precision`, `memory` and `attention`: how a step is laid out on devices."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from jaxpar.config.bounds import AXIS, BYTES, LAYERS, MICROBATCHES, POSITIVE, RANKS, SHARE, at_least
from jaxpar.config.mappings.experts import ExpertOptions
from jaxpar.config.mappings.matmul import MatmulOptions
from jaxpar.config.mappings.overlap import OFF, ON_ANY_LAYOUT, OverlapConfig
from jaxpar.config.mappings.quantized import QuantizedConfig


@dataclass(frozen=True)
class ParallelConfig:
    """The layout: the size of each mesh axis and how weights and state are sharded. One axis may be -1: the devices
    that remain. `parallel.overlap` is `auto`, `off`, or a mapping of the options that are to differ from `auto`."""

    islands: Annotated[int, AXIS] = 1
    """Parts that train apart and exchange weights every few steps (section `islands`, `docs/islands.md`)."""
    pipe: Annotated[int, AXIS] = 1
    """Pipeline stages."""
    replica: Annotated[int, AXIS] = 1
    """Data parallelism with full copies of the weights (the outer level of HSDP)."""
    fsdp: Annotated[int, AXIS] = 1
    """Data parallelism over which `zero` shards weights, gradients and optimizer state."""
    expert: Annotated[int, AXIS] = 1
    """Expert parallelism; for dense weights it is another data-parallel axis."""
    experts: ExpertOptions = field(default_factory=ExpertOptions)
    """Exchange and matmuls of experts (`docs/experts.md`)."""
    context: Annotated[int, AXIS] = 1
    """Context parallelism: the sequence is split, inside attention too."""
    tensor: Annotated[int, AXIS] = 1
    """Tensor parallelism, with sequence parallelism between the matmuls."""
    zero: Literal[0, 1, 2, 3] = 3
    """State sharded over fsdp, expert and context: 0 nothing, 1 optimizer state, 2 also gradients, 3 also weights."""
    microbatches: Annotated[int, at_least(1, MICROBATCHES)] = 1
    """Parts into which the batch of a step is split; gradients accumulate over them."""
    schedule: str = "auto"
    """Pipeline schedule: `gpipe`, `1f1b`, `interleaved`, `breadth-first`, `zb-uniform`, `zb-h1`, `zb-v`, `dualpipe-v`,
    `v-half`, or the path of a table (`.csv`); `auto` is `1f1b`. `python -m jaxpar.schedule` draws and compares them."""
    virtual_stages: Annotated[int, at_least(1, LAYERS)] | None = None
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
    """Access of attention to the other ranks' keys and values: `allgather` gathers them, `ring` passes them from rank
    to rank, `ulysses` exchanges sequence for heads, `usp` does both (`docs/long-context.md`)."""
    context_order: Literal["auto", "contiguous", "zigzag", "striped"] = "auto"
    """Tokens of a row that a context rank holds: one contiguous part; two parts, one from each end (`zigzag`); or
    every n-th token of n ranks (`striped`). The latter two balance the work of a causal mask."""
    hpz: Annotated[int, at_least(2, RANKS)] | None = None
    """Neighbouring ranks of fsdp x expert x context, in one node, that hold a second copy of the weights among them
    during a step, from which each microbatch's forward and backward gather (ZeRO++'s hpZ); null holds none. It takes
    1 / `hpz` of the weights' bytes on each device (`docs/zeropp.md`)."""
    quantized: QuantizedConfig = field(default_factory=QuantizedConfig)
    """Messages in blocks of few bits."""
    ulysses: Annotated[int, at_least(1, RANKS)] | None = None
    """Context ranks in a group of `usp`; null takes the most ranks of a node among which the heads divide."""
    overlap: OverlapConfig = field(default_factory=OverlapConfig)
    """Work that runs beside messages between devices."""
    auto: bool = False
    """Plan the layout, and the activations that layers keep, for this machine when training starts; `parallel: auto`
    means the same. `python -m jaxpar.plan` plans for any cluster that is described."""


def expert_options(parallel: ParallelConfig) -> ExpertOptions:
    """`parallel.experts`, in one slice where `parallel.overlap.experts` is off unless another number is named."""
    options = parallel.experts
    off = parallel.overlap.experts == "off" and options.slices == "auto"
    return replace(options, slices=1) if off else options


def fixed_for_planner(parallel: ParallelConfig) -> dict[str, Any]:
    """Keys of `parallel` that the planner takes as they are, where it searches the others.

    Rows of the embedding, and several layers in a turn, are possible on some
    layouts only; state that is split over replicas is kept where a layout has any.
    """
    asked = parallel.overlap
    taken = ("collectives_at_once", "shard_state_over_replicas")
    options: dict[str, Any] = {name: getattr(asked, name) for name in taken}
    options |= {name: value for name in ON_ANY_LAYOUT if getattr(asked, name) == (value := getattr(OFF, name))}
    return {
        "islands": parallel.islands, "experts": parallel.experts, "quantized": parallel.quantized,
        "overlap": OverlapConfig(**options),
    }  # fmt: skip


@dataclass(frozen=True)
class PrecisionConfig:
    """A dtype per role."""

    compute: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Matmuls and activations; float16 turns on dynamic loss scaling."""
    matmul: Literal["fp8_current", "fp8_delayed", "fp8_block", "mxfp8"] | None = None
    """Format of the layers' matmuls (`docs/fp8.md`): `fp8_current` quantizes to 8 bits with one scale for each tensor,
    from its own largest magnitude; `fp8_delayed` from those of earlier steps; `fp8_block` with one
    for 128 numbers, of weights for 128 x 128; `mxfp8` with one for 32 numbers, on Blackwell GPUs. null multiplies in
    `compute`."""
    matmul_options: MatmulOptions = field(default_factory=MatmulOptions)
    """Exceptions and other options of `matmul`."""
    spikes: Annotated[float, POSITIVE] | None = None
    """In evaluation and generation, inputs of the layers' matmuls are rounded to multiples of a token's mean of |x|
    divided by this number (`docs/spikingbrain.md`); null leaves them."""
    storage: Literal["float32", "bfloat16", "float16"] | None = None
    """Weights between their uses in a step, and when they are gathered; null means `compute`."""
    gradient: Literal["float32", "bfloat16"] = "float32"
    """Accumulation and reduction of gradients."""
    moments: Literal["float32", "bfloat16", "int8"] = "float32"
    """Dtype of the optimizer's moments between updates: `bfloat16` halves them; `int8` takes about 1 byte an
    element for the layers' matrices (8 bits in blocks with a scale each), with bfloat16 for embedding and head and
    float32 for norms and biases. Updates are computed in float32."""


@dataclass(frozen=True)
class MemoryConfig:
    """Activations between forward and backward: saved, offloaded or recomputed."""

    remat: (
        Literal["none", "full", "selective", "gemm_last", "auto"]
        | dict[str, str | int]
        | tuple[dict[str, str | int], ...]
    ) = field(default="gemm_last", hash=False)
    """A preset: `none` keeps every named activation, `full` only each layer's input, `gemm_last` the outputs of matmuls
    and attention, `selective` all but what attention itself computes; `auto` takes the fastest choice that fits. Or a
    mapping of `save`, `recompute` or `offload` by name, with `preset` for other names (by default `gemm_last`):
    `{preset: full, layer_input: offload}`. Or a list of mappings, each with `layers: 0-15`, the layers of a chunk that
    it is for. Names: `layer_input` (`save` or `offload`), `attention_input`, `query`, `key`, `value`,
    `attention_output`, `attention_lse`, `attention_residual`, `mlp_input`, `mlp_gate`, `mlp_up`, `mlp_activated`,
    `mlp_hidden`; with attention sinks `attention_scaled`; with a gate of
    attention `attention_gate`, `attention_gated`; of layers that share keys `shared_key`, `shared_value`; with
    inputs of layers `mlp_residual`, `per_layer_input`, `per_layer_gated`, `per_layer_hidden`, `per_layer_projected`;
    with several residual streams `altup_predicted`; with a learned residual `laurel_inside`, `laurel_projected`;
    with norms after the blocks `attention_projected`,
    `mlp_projected`; with experts `router_logits`, `noise_logits`, `router_projected`, `expert_input`, `expert_gate`,
    `expert_up`, `expert_activated`, `expert_hidden`, `shared_gate`, `shared_up`, `shared_activated`, `shared_hidden`,
    `shared_router_logits`;
    with latent attention `query_latent`, `kv_latent`,
    `expanded_query`, `expanded_key`, `expanded_value`; of mixers with a state `linear_query`, `linear_key`,
    `linear_value`, `linear_query_of_group`, `linear_value_of_group`, `linear_gate`, `linear_decay`,
    `linear_decay_of_head`, `linear_rate_of_head`, `linear_step_of_head`,
    `linear_convolved_query`, `linear_convolved_key`, `linear_convolved_value`, `linear_entry`, `linear_entered`,
    `linear_convolved_entered`, `linear_output`, `linear_gated`, and
    `mixer_input`, `mixer_residual`, `mixer_projected`. `docs/memory.md` describes this section."""
    offload_fraction: Annotated[float, SHARE] = 0.0
    """Share of what a chunk of layers keeps of a microbatch that is offloaded to pinned host memory."""
    host_limit: Annotated[int, at_least(0, BYTES)] | None = None
    """Bytes of host memory per device for offloaded activations and for state under `optimizer_offload: host`. Null
    divides the machine's memory, or the `host_memory` of a described cluster, among its devices."""
    optimizer_offload: Literal["none", "host", "file"] = "none"
    """Storage of master weights and moments: on the device, in pinned host memory (`host`), or in files under
    `memory.offload_dir` (`file`). Results and checkpoints have the same bits."""
    weights_offload: Literal["none", "host"] = "none"
    """`host` keeps weights and gradients of layers in pinned host memory within a step, too. It needs
    `optimizer_offload: host`. Losses and gradients have the same bits (seen on CPU devices), but not the last bit of
    the gradient norm."""
    offload_dir: str | None = None
    """Folder of the files of `optimizer_offload: file`, on a local disk; null is the run's folder. A later start writes
    new files."""
    loss_tiles: Annotated[int, at_least(1)] | None = None
    """Tiles of a microbatch's tokens that head and loss process in turn, so that logits exist for one tile at a time;
    null makes tiles of at most 1 GiB of float32 logits."""
    mlp_tiles: Annotated[int, at_least(1)] | None = None
    """Tiles of a microbatch's tokens that go through each layer's feed-forward in turn; hidden activations are then
    recomputed in the backward. Null makes tiles of about `model.embed` tokens where they are recomputed anyway
    (`remat: full`) and take more than 1 GiB in a layer, and one tile elsewhere. Experts are not computed in tiles;
    other layers of their model are."""


@dataclass(frozen=True)
class AttentionConfig:
    """The implementation of attention, and its blocks."""

    backend: Literal["auto", "flash", "mosaic", "mosaic_deterministic", "triton", "cudnn", "xla"] = "auto"
    """`xla` is plain JAX, for every mask, dtype and platform; `cudnn` is cuDNN's; `mosaic`, `mosaic_deterministic` and
    `triton` are our kernels, and `flash` the first of these that supports the run. `auto` takes the backend that was
    recorded as the fastest on such a GPU; without records the first that supports the run, of our kernels only those
    that have been verified on such a GPU. A named one that does not support the run is an error. `docs/kernels.md`
    compares them."""
    deterministic: bool = False
    """Output and gradients of attention are the same bits in every run. It excludes backends whose bits vary: a backend
    that is named and varies is an error. `mosaic` sums the gradient of queries in any order, and cuDNN is deterministic
    only with `--xla_gpu_deterministic_ops=true` in `XLA_FLAGS`. It costs up to a third of the speed of the backward."""
    query_block: Annotated[int, at_least(1)] | None = None
    """Rows of queries in a block of the backend `xla`; null takes 512 on GPUs, and 64 on CPUs, whose caches hold the
    scores of such a block."""
    kv_block: Annotated[int, at_least(1)] | None = None
    """Rows of keys and values in a block of the backend `xla`; null as for `query_block`."""
    linear_backend: Literal["auto", "mosaic", "xla"] = "auto"
    """Passes the state of mixers through chunks of tokens: `xla` is plain JAX, in float32; `mosaic` is our kernel
    for Hopper GPUs, whose products have bfloat16 operands. `auto` takes the kernel only on GPUs where it was recorded
    as right and no slower. A named one that does not support the run is an error."""

"""What the user writes: one frozen dataclass per section of the YAML file.

The string under a field is its documentation: `docs/configuration.md` and `--help` are made from it.
Nothing here imports JAX, reads a file or looks at a device; checks across fields live in `validate.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from jaxpar.config.parts import FEED_FORWARDS


@dataclass(frozen=True)
class RunConfig:
    """How long a run is, where it writes, how often it speaks."""

    name: str = "run"
    """Name of the run: the folder `<run.dir>/<run.name>` holds everything it writes."""
    dir: str = "runs"
    """Parent folder of the run's own folder."""
    steps: int = 1000
    """Optimizer steps to train for."""
    seed: int = 0
    """Seed of the initial weights, the data order and dropout."""
    log_every: int = 10
    """Steps between two logged lines."""
    profile: str | None = None
    """Steps to trace with the JAX profiler, as `first:last` (for example `10:15`)."""
    max_skipped_steps: int = 10
    """Stop with a diagnosis after this many steps in a row with a non-finite loss or gradient."""
    compile_cache: str | None = "~/.cache/jaxpar/xla"
    """Folder of the persistent compilation cache; null turns it off."""
    wandb: str | None = None
    """Project of Weights & Biases to send the run to (the package is the extra `wandb`); null means none."""


@dataclass(frozen=True)
class Pattern:
    """The kinds of a model's layers in order: `prefix`, then `unit` again and again, then `suffix`."""

    unit: tuple[str, ...]
    """Kinds that repeat, as often as `model.layers` wants."""
    prefix: tuple[str, ...] = ()
    """Kinds of the layers before them."""
    suffix: tuple[str, ...] = ()
    """Kinds of the layers behind them."""


@dataclass(frozen=True)
class ModelConfig:
    """The decoder. A preset fills every field; fields written beside it override it."""

    preset: str | None = None
    """Name of a published model to start from (`llama3-8b`, `gpt2-124m`, ...)."""
    layers: int = 4
    """Number of decoder layers."""
    kinds: dict[str, dict[str, int | float | bool | str | None]] = field(default_factory=dict, hash=False)
    """Kinds of layers by name, each with the keys of `model` in which it differs: `{local: {window: 512}, global: {}}`.
    Empty means that all layers are alike."""
    pattern: Pattern | None = None
    """Which layer is of which kind: `{prefix: [...], unit: [...], suffix: [...]}`, lists of names of `model.kinds`; the
    unit repeats until there are `model.layers`. Null is for a model without kinds."""
    embed: int = 256
    """Width of the residual stream."""
    heads: int = 8
    """Query heads."""
    kv_heads: int | None = None
    """Key and value heads (grouped-query attention); null means as many as `heads`."""
    head_dim: int | None = None
    """Width of one head; null means `embed / heads`."""
    mlp: int = 1024
    """Hidden width of the feed-forward layer."""
    vocab: int | None = None
    """Vocabulary size; null takes it from the data source."""
    vocab_multiple: int = 128
    """The vocabulary is padded to this multiple, on every mesh alike, so that weights do not depend on the layout."""
    norm: Literal["rmsnorm", "zero_centered_rmsnorm", "layernorm"] = "rmsnorm"
    """Normalisation around attention and the feed-forward layer (see `norm_placement`) and before the head;
    `zero_centered_rmsnorm` multiplies by 1 plus its weights, which begin at 0 (Gemma)."""
    norm_placement: Literal["pre", "post", "sandwich"] = "pre"
    """Whether attention and the feed-forward layer have a norm before them (`pre`), of what they give before it is
    added to the residual stream (`post`: OLMo 2), or both (`sandwich`: Gemma 2 and 3)."""
    norm_epsilon: float = 1e-5
    """Added to the mean square (or variance) inside the normalisation."""
    position: Literal["rope", "learned"] = "rope"
    """Rotary embeddings of queries and keys, or a learned table added to the token embeddings."""
    max_positions: int = 1024
    """Rows of the learned position table; rotary embeddings do not use it."""
    rope_base: float = 10000.0
    """Base of the rotary frequencies."""
    rope_scaling: Literal["none", "linear", "llama3"] = "none"
    """How rotary frequencies are stretched for contexts longer than the model was first trained on."""
    rope_factor: float = 8.0
    """Stretch factor of `linear` and `llama3` scaling."""
    rope_original_length: int = 8192
    """Context length before stretching (`llama3` scaling)."""
    rope_low_frequency: float = 1.0
    """Wavelengths longer than `rope_original_length / rope_low_frequency` are stretched in full (`llama3`)."""
    rope_high_frequency: float = 4.0
    """Wavelengths shorter than `rope_original_length / rope_high_frequency` are kept (`llama3`)."""
    qk_norm: bool | Literal["projection"] = False
    """Normalise queries and keys before the rotation: per head (true: Qwen3, Gemma 3), or over all heads at once
    (`projection`: OLMo 2)."""
    attention_bias: bool | Literal["qkv"] = False
    """Biases on the four projections of attention, or on those of queries, keys and values alone (`qkv`: Qwen 2.5)."""
    attention_scale: float | None = None
    """Factor of the attention scores; null means `head_dim ** -0.5`."""
    mlp_bias: bool = False
    """Biases on the projections of the feed-forward layer."""
    activation: Annotated[str, FEED_FORWARDS] = "swiglu"
    """Feed-forward non-linearity; `swiglu` and `geglu` have a third (gate) projection."""
    tied: bool = False
    """Use the token embedding as the output head."""
    embedding_scale: bool = False
    """Multiply token embeddings by `sqrt(embed)` (Gemma)."""
    window: int | None = None
    """Sliding-window attention: a token sees itself and the `window - 1` tokens before it; null means no limit."""
    logit_softcap: float | None = None
    """Cap of the output logits: `c * tanh(x / c)`; null means none."""
    attention_softcap: float | None = None
    """Cap of the attention scores: `c * tanh(x / c)`; null means none."""
    dropout: float = 0.0
    """Dropout after the embedding, attention and feed-forward layer; a function of the global token, so the same on
    every layout."""
    init_scale: float = 0.02
    """Standard deviation of the initial weights; projections back into the residual stream are divided by
    `sqrt(2 * layers)` besides."""
    z_loss: float = 0.0
    """Weight of `logsumexp(logits)^2`, which keeps the logits from drifting."""


@dataclass(frozen=True)
class ParallelConfig:
    """The layout: the size of each mesh axis and what rests where. One axis may be -1: what remains."""

    pipe: int = 1
    """Pipeline stages."""
    replica: int = 1
    """Data parallelism with whole copies of the weights (the outer level of HSDP)."""
    fsdp: int = 1
    """Data parallelism over which `zero` shards weights, gradients and optimizer state."""
    expert: int = 1
    """Expert parallelism; for dense weights another data-parallel axis."""
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
    """Chunks of layers on each pipeline rank; null is the fewest that the schedule can have."""
    stage_layers: tuple[int, ...] | None = None
    """Layers of each chunk, in the order of the model; null makes them as equal as can be. All take the memory of
    the longest; on GPUs of one kind all wait for it too."""
    pipe_ends: Literal["last", "shared"] = "last"
    """Head and embedding under a pipeline: whole on each rank, used by the last and first (`last`), or their vocabulary
    split over all ranks, which then share the work of the loss (`shared`)."""
    pipe_ticks: Literal["uniform", "branching"] = "uniform"
    """`uniform`: all ranks run the same program in each tick; `branching`: each rank runs its own action alone, in the
    published order, which needs layers without permutes."""
    context_strategy: Literal["auto", "allgather", "ring", "ulysses", "usp"] = "auto"
    """How attention sees the other ranks' keys and values when `context` is above 1: `allgather` gathers them, `ring`
    passes them from rank to rank, `ulysses` exchanges sequence for heads, `usp` does that inside groups of neighbours
    and rings between the groups."""
    context_order: Literal["auto", "contiguous", "zigzag", "striped"] = "auto"
    """Which tokens of a row a context rank holds: a contiguous part; two parts, one from each end (`zigzag`); or every
    so-manieth token (`striped`). The latter two balance the work of a causal mask; `auto` takes `zigzag`, but
    `contiguous` where a window is shorter than a part, and where `ulysses` leaves nothing to balance."""
    ulysses: int | None = None
    """Context ranks of a group of `usp`; null is as many of a node as share out the heads."""
    auto: bool = False
    """Plan the layout for the machine at hand when training starts, and what layers keep with it; `parallel: auto` says
    the same. `python -m jaxpar.plan` plans for a cluster that is not at hand."""


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
    """How the optimizer's moments rest between updates: `bfloat16` halves them; `int8` takes about 1 byte an element
    for the layers' matrices (8 bits in blocks with a scale each), with bfloat16 for embedding and head and float32 for
    norms and biases. Updates are computed in float32."""
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
    """`none` keeps every named activation, `full` only each layer's input, `gemm_last` drops what comes back without a
    matrix product (norms and the non-linearity), `selective` only what attention itself makes, and `auto` what costs
    least time among all maps that fit. Or a mapping that says `save`, `recompute` or `offload` (to the host's pinned
    memory) by name, and `preset` for the names that it leaves out (by default `gemm_last`): `{preset: full,
    layer_input: offload}`. Or a list of such mappings, each with `layers: 0-15`, the layers of a chunk that it is of
    (without a pipeline there is one chunk, the model). Names: `layer_input` (`save` or `offload`), `attention_input`,
    `query`, `key`, `value`, `attention_output`, `attention_lse`, `attention_residual`, `mlp_input`, `mlp_gate`,
    `mlp_up`, `mlp_activated`, `mlp_hidden`; with norms behind the blocks `attention_projected`, `mlp_projected`."""
    offload_fraction: float = 0.0
    """Share of the bytes that a chunk of layers keeps of a microbatch, that lies in the host's pinned memory between
    forward and backward: the first layers whole, and one in part."""
    offload_smallest: int = 1048576
    """Arrays of fewer bytes stay on the device under `memory.offload_fraction`."""
    host_limit: int | None = None
    """Bytes of the host's memory that may be used for each device: by activations that are offloaded, and by a state
    under `optimizer_offload: host`. Null is the machine's memory, shared out; where a machine is only described, the
    `host_memory` of its cluster."""
    optimizer_offload: Literal["none", "host", "file"] = "none"
    """Where master weights and moments rest: `none` on the device, `host` in the host's pinned memory, `file` in files
    under `memory.offload_dir`. From host or files they pass through the device a piece at a time, at the end of each
    step; `memory.weights_offload` is about the weights of the step. The numbers are the same bits, and so is a
    checkpoint."""
    optimizer_resident: int = 0
    """Bytes of each device in which master weights and moments of some weights may stay under
    `optimizer_offload: host`; the others pass through."""
    weights_offload: Literal["none", "host"] = "none"
    """Where weights and gradients of layers rest in a step: `none` on the device; under `host` those of the first
    layers rest in the host's pinned memory, come to the device before their forward and again before their backward,
    and leave it when they are made. It needs `optimizer_offload: host`. Losses and gradients are the same bits (seen
    on CPU devices); the norm of the gradient adds them up in another order, so that its last bit may differ. What
    replicas have to sum is sent twice, for the norm and for the update."""
    weights_resident: int = 0
    """Bytes of each device in which weights and gradients of the last layers may stay under `weights_offload: host`;
    two layers that come and go have room besides."""
    offload_dir: str | None = None
    """Folder of the files of `optimizer_offload: file`, on a disk of the machine, with room for master weights and
    moments; null puts them into the run's folder. They mean nothing to a later start, which makes them anew."""
    loss_tiles: int | None = None
    """Parts of a microbatch's tokens that head and loss take in turn, forward and backward, so that logits exist for
    one part at a time; null makes parts whose float32 logits are 1 GiB or less."""
    loss_backend: Literal["auto", "xla", "fused"] = "auto"
    """Head and loss: `xla` takes them in tiles; `fused` by the kernel of `pallas_kernels`, which holds no logits but
    makes them twice. `auto` takes the kernel on GPUs where a record says that it was right."""
    mlp_tiles: int | None = None
    """As `memory.loss_tiles`, for the feed-forward of each layer, whose hidden activations are then recomputed in the
    backward. Null makes parts of about `model.embed` tokens where hidden activations are recomputed anyway (`remat:
    full`) and take more than 1 GiB in a layer, and one part elsewhere."""


@dataclass(frozen=True)
class AttentionConfig:
    """Which implementation computes attention."""

    backend: Literal["auto", "flash", "mosaic", "mosaic_deterministic", "triton", "cudnn", "xla"] = "auto"
    """`flash` is the first of our kernels for GPUs that suits: `mosaic_deterministic` and `mosaic` (Hopper), whose
    gradient of queries is the same bits in every run in the first alone, and `triton`; `cudnn` is cuDNN's, `xla` plain
    JAX, block by block, for every mask, dtype and platform. `auto` takes the first that supports the run, in an order
    that depends on the mask, and of our kernels only those that have been verified on such a GPU; a named one that does
    not support the run is an error. The plan says where results are not the same bits in every run."""
    query_block: int = 512
    """Rows of queries that the backend `xla` holds at a time."""
    kv_block: int = 512
    """Rows of keys and values that the backend `xla` holds at a time."""


@dataclass(frozen=True)
class OptimizerConfig:
    """The update rule and its schedule."""

    name: Literal["adamw", "muon", "lion", "adafactor"] = "adamw"
    """`adamw`; `muon` for the layers' matrices with AdamW for embeddings, head, norms and biases; `lion`, which keeps
    one moment instead of two; or `adafactor`, which keeps means of rows and columns instead of moments."""
    learning_rate: float = 3e-4
    """Peak learning rate of every rule but Muon's. Lion wants 3 to 10 times less than AdamW, and as much more decay."""
    beta1: float = 0.9
    """Decay of AdamW's first moment."""
    beta2: float = 0.95
    """Decay of AdamW's second moment."""
    epsilon: float = 1e-8
    """Added to the root of AdamW's second moment."""
    weight_decay: float = 0.1
    """Decoupled weight decay of matrices and embeddings; norms and biases have none."""
    clip_norm: float | None = 1.0
    """Largest global norm of the gradient; null turns clipping off."""
    schedule: Literal["cosine", "linear", "wsd", "constant"] = "cosine"
    """Shape of the learning rate after warm-up; `wsd` is flat, then falls over the last `decay_fraction`."""
    warmup_steps: int = 100
    """Steps of linear warm-up from 0."""
    decay_steps: int | None = None
    """Step at which the schedule ends; null means `run.steps`."""
    decay_fraction: float = 0.2
    """Share of the schedule over which `wsd` falls."""
    final_fraction: float = 0.1
    """Learning rate at the end of the schedule, as a fraction of the peak."""
    muon_learning_rate: float = 0.02
    """Peak learning rate of Muon's matrices; it follows the same schedule."""
    muon_momentum: float = 0.95
    """Momentum of Muon (Nesterov)."""
    muon_iterations: int = 5
    """Newton-Schulz iterations of Muon."""
    lion_beta1: float = 0.9
    """Share of the momentum, against the gradient, in the sign that Lion steps by."""
    lion_beta2: float = 0.99
    """Decay of Lion's momentum."""
    adafactor_relative: bool = False
    """Multiply Adafactor's steps by the root mean square of the weight (at least 1e-3), as its paper does: the learning
    rate is then a share of the weight, 1e-2 in the paper. Without it, it is about AdamW's."""
    ema: float | None = None
    """Decay of an exponential moving average of the weights, for example 0.999; null keeps none. It takes 4 bytes a
    parameter, lies like the moments, and is saved with them; `evaluation.ema` uses it."""


@dataclass(frozen=True)
class DataConfig:
    """Where tokens come from and how they become a batch."""

    source: Literal["stdlib", "tokens", "synthetic"] = "stdlib"
    """`stdlib`: the sources of Python's standard library as bytes; `tokens`: what `python -m jaxpar.prepare` made, or
    a file of tokens; `synthetic`: generated."""
    path: str | None = None
    """Token folder, or a file of tokens (`.npy`, one dimension, unsigned integers), for `source: tokens`."""
    sources: dict[str, float] | None = field(default=None, hash=False)
    """Several token folders instead of `path`, each with its weight: `{a/tokens: 0.7, b/tokens: 0.3}`. Between two
    runs of one job weights may change and sources come and go; each goes on where it was."""
    heldout_path: str | None = None
    """Token folder (or file) to evaluate on; null means what the folders hold out, and nothing for a file."""
    separator: int | None = None
    """Token that ends a document in a file of tokens; null means that the file is one document."""
    sequence_length: int = 1024
    """Tokens per row."""
    batch_size: int = 8
    """Rows per optimizer step, over all devices and microbatches."""
    packed: bool = True
    """Keep documents that share a row apart: attention does not cross them and positions restart."""
    prefetch: int = 2
    """Batches prepared ahead of the step that uses them."""


@dataclass(frozen=True)
class EvaluationConfig:
    """Loss on held-out data, and a sample at the end."""

    every: int = 0
    """Steps between evaluations; 0 evaluates at the end only."""
    batches: int = 8
    """Batches per evaluation, always the same ones; 0 turns evaluation off."""
    sample_tokens: int = 0
    """Tokens to generate from a held-out prompt at the end; 0 means none."""
    ema: bool = False
    """Evaluate and sample with the moving average of the weights (`optimizer.ema`) instead of the weights."""
    sample_temperature: float = 0.7
    """Temperature of that sample; 0 takes the likeliest token."""


@dataclass(frozen=True)
class CheckpointConfig:
    """When to save and what to keep."""

    every: int = 0
    """Steps between saves; 0 saves at the end only (and on SIGTERM)."""
    keep_last: int = 2
    """Newest checkpoints to keep, and newest healthy ones: those saved after a step that was applied."""
    keep_every: int | None = None
    """Keep every checkpoint whose step is a multiple of this, for ever."""


@dataclass(frozen=True)
class WatchConfig:
    """What a run looks out for while it trains, and what it does about a loss that jumps (`docs/operations.md`)."""

    spike: float | None = 8.0
    """A loss this many standard deviations (estimated robustly) above the median of the last ones is a spike; null
    looks for none."""
    spike_window: int = 100
    """Losses that a new one is compared with; a run begins to look after a fifth of them."""
    on_spike: Literal["report", "rollback"] = "report"
    """`report` tells of a spike and goes on; `rollback` goes back to the newest checkpoint and leaves out the batches
    that led to the spike."""
    skip_batches: int = 2
    """Batches that a rollback leaves out: that of the spike, and those before it, one of which may have caused it."""
    max_rollbacks: int = 3
    """The run stops at the spike after this many rollbacks."""
    slow_step: float | None = 3.0
    """A step that takes this many times the median, and a second longer, is told of; null looks for none."""
    slow_pace: float | None = 1.5
    """Steps that take this many times what they took at best, twenty in a row, are told of; null looks for none."""
    data_wait: float | None = 0.1
    """Share of the time, lost to devices that wait for their batch, from which on it is told; null never tells."""
    straggler: float | None = 0.1
    """Share of the time that one process loses for all others, from which on it is named; null never does."""


@dataclass(frozen=True)
class DistributedConfig:
    """Several processes, one job (`jax.distributed`); what is null comes from Slurm, Open MPI, Kubernetes or
    `launch/local.py`, whichever started the process."""

    coordinator: str | None = None
    """`host:port` of process 0; null asks the launcher, and without one the process is alone."""
    processes: int | None = None
    """Number of processes in the job; null asks the launcher, and 1 is a single process under any launcher."""
    process_id: int | None = None
    """Index of this process; null asks the launcher."""
    devices_per_process: int | None = None
    """Devices that each process must have; null expects what the launcher and the layout say."""
    secret_file: str | None = None
    """A file with a secret that all processes must know to join; null takes `JAXPAR_SECRET`, and without it there is
    none (`docs/clusters.md`)."""
    timeout_s: int = 50
    """How long to wait for the other processes at start-up, in seconds."""
    heartbeat_timeout_s: int = 30
    """A process that gives no sign of life for so many seconds ends the job: it is stopped, or its host is down."""
    step_timeout_s: int | None = None
    """A step that takes more seconds than this ends the job, and whoever the others waited for is named. Null: five
    times the median of the last steps, 45 at least; 600 while these are too few, or one of the others logs or saves."""
    pause_timeout_s: int = 7200
    """The same for what is not a step: data, compilation, evaluation, saving, and checking a checkpoint."""


@dataclass(frozen=True)
class Config:
    """A whole run."""

    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    watch: WatchConfig = field(default_factory=WatchConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)

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
    """How long a run is, where it writes, how often it logs."""

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
    """Stop with a diagnosis after this many consecutive steps with a non-finite loss or gradient."""
    compile_cache: str | None = "~/.cache/jaxpar/xla"
    """Folder of the persistent compilation cache; null turns it off."""
    wandb: str | None = None
    """Project of Weights & Biases to send the run to (the package is the extra `wandb`); null means none."""


@dataclass(frozen=True)
class Pattern:
    """The kinds of a model's layers in order: `prefix`, then `unit` repeated, then `suffix`."""

    unit: tuple[str, ...]
    """Kinds that repeat, as often as `model.layers` requires."""
    prefix: tuple[str, ...] = ()
    """Kinds of the layers before them."""
    suffix: tuple[str, ...] = ()
    """Kinds of the layers after them."""


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
    """The kind of each layer: `{prefix: [...], unit: [...], suffix: [...]}`, lists of names of `model.kinds`; the
    unit repeats until there are `model.layers` layers. Null is for a model without kinds."""
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
    """Whether attention and the feed-forward layer have a norm on their input (`pre`), on their output before it is
    added to the residual stream (`post`: OLMo 2), or on both (`sandwich`: Gemma 2 and 3)."""
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
    """The feed-forward, by its non-linearity; those that gate it, such as `swiglu`, have a third projection."""
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
    """Dropout after the embedding, attention and feed-forward layer; a function of the global token index, so the same
    on every layout."""
    init_scale: float = 0.02
    """Standard deviation of the initial weights; that of projections back into the residual stream is also divided by
    `sqrt(2 * layers)`."""
    z_loss: float = 0.0
    """Weight of `logsumexp(logits)^2`, which keeps the logits from drifting."""


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


@dataclass(frozen=True)
class OptimizerConfig:
    """The update rule and its schedule."""

    name: Literal["adamw", "muon", "lion", "adafactor"] = "adamw"
    """`adamw`; `muon` for the layers' matrices, with AdamW for embeddings, head, norms and biases; `lion`, which keeps
    one moment instead of two; or `adafactor`, which keeps means of rows and columns instead of moments."""
    learning_rate: float = 3e-4
    """Peak learning rate of every rule but Muon's. Lion needs one 3 to 10 times smaller than AdamW's, and a weight
    decay that is larger by the same factor."""
    beta1: float = 0.9
    """Decay of AdamW's first moment mu."""
    beta2: float = 0.95
    """Decay of AdamW's second moment nu."""
    epsilon: float = 1e-8
    """Added to the square root of AdamW's nu."""
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
    """Weight of the momentum in the average of momentum and gradient whose sign is Lion's update."""
    lion_beta2: float = 0.99
    """Decay of Lion's momentum."""
    adafactor_relative: bool = False
    """Multiply Adafactor's updates by the root mean square of the weight (at least 1e-3), as its paper does: the
    learning rate is then relative to the weight, 1e-2 in the paper. Without this, it is about AdamW's."""
    ema: float | None = None
    """Decay of an exponential moving average of the weights, for example 0.999; null keeps none. It takes 4 bytes a
    parameter, is sharded like the moments, and is saved with them; `evaluation.ema` uses it."""


@dataclass(frozen=True)
class DataConfig:
    """Where tokens come from and how they become a batch."""

    source: Literal["stdlib", "tokens", "synthetic"] = "stdlib"
    """`stdlib`: the sources of Python's standard library as bytes; `tokens`: what `python -m jaxpar.prepare` made, or
    a file of tokens; `synthetic`: generated."""
    path: str | None = None
    """Token folder, or a file of tokens (`.npy`, one dimension, unsigned integers), for `source: tokens`."""
    sources: dict[str, float] | None = field(default=None, hash=False)
    """Several token folders instead of `path`, each with its weight: `{a/tokens: 0.7, b/tokens: 0.3}`. When a job is
    resumed, weights may change and sources may be added or removed; each source continues where it was."""
    heldout_path: str | None = None
    """Token folder (or file) to evaluate on; null means the held-out part of the folders, and nothing for a file."""
    separator: int | None = None
    """Token that ends a document in a file of tokens; null means that the file is one document."""
    sequence_length: int = 1024
    """Tokens per row."""
    batch_size: int = 8
    """Rows per optimizer step, over all devices and microbatches."""
    packed: bool = True
    """Separate documents that share a row: attention does not cross them and positions restart."""
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
    """Number of newest checkpoints to keep, and of newest healthy ones: those saved after a step that was applied."""
    keep_every: int | None = None
    """Never delete a checkpoint whose step is a multiple of this."""


@dataclass(frozen=True)
class WatchConfig:
    """The anomalies that a run watches for, and what it does about a loss spike (`docs/operations.md`)."""

    spike: float | None = 8.0
    """A loss this many standard deviations (estimated robustly) above the median of the last ones is a spike; null
    turns this off."""
    spike_window: int = 100
    """Number of past losses that a new one is compared with; the comparison starts once a fifth of them are there."""
    on_spike: Literal["report", "rollback"] = "report"
    """`report` reports a spike and continues; `rollback` goes back to the newest checkpoint and skips the batches
    that led to the spike."""
    skip_batches: int = 2
    """Batches that a rollback skips: that of the spike, and those before it, one of which may have caused it."""
    max_rollbacks: int = 3
    """The run stops at the spike after this many rollbacks."""
    slow_step: float | None = 3.0
    """A step is reported if it takes this many times the median and at least a second longer; null turns this off."""
    slow_pace: float | None = 1.5
    """Twenty consecutive steps are reported if their median is this many times the best there was; null turns this
    off."""
    data_wait: float | None = 0.1
    """Waiting for data is reported from this share of the time on; null turns this off."""
    straggler: float | None = 0.1
    """A process is reported when all others wait for it for this share of the time; null turns this off."""


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
    """Devices that each process must have; null takes the number from the launcher and the layout."""
    secret_file: str | None = None
    """A file with a secret that all processes must know to join; null takes `JAXPAR_SECRET`, and without it there is
    none (`docs/clusters.md`)."""
    timeout_s: int = 50
    """How long to wait for the other processes at start-up, in seconds."""
    heartbeat_timeout_s: int = 30
    """A process without a heartbeat for this many seconds ends the job: it was stopped, or its host is down."""
    step_timeout_s: int | None = None
    """A step that takes more seconds than this ends the job, and the process that the others waited for is named. Null:
    five times the median of the last steps, at least 45; 600 while these are too few, or another process logs or
    saves."""
    pause_timeout_s: int = 7200
    """The same limit for what is not a step: data, compilation, evaluation, saving, and checking a checkpoint."""


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

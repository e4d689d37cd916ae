"""Every check between keys: pure functions, run before a device is used, a file is read or memory is allocated.

Checks that need the weights of the model are in `jaxpar.layers.checks`, which commands call.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from math import prod

from jaxpar.config.axes import AXES, check_axes
from jaxpar.config.bounds import BOUNDS, COUNT, RANKS, TOKENS, spell_limit
from jaxpar.config.counting import head_dim, kv_heads, padded_vocab
from jaxpar.config.errors import UserError
from jaxpar.config.kinds import check_kinds, kind_models
from jaxpar.config.reading.sections import check_value, config_to_dict
from jaxpar.config.reading.unused import unused_settings
from jaxpar.config.schema import Config, DataConfig, ParallelConfig
from jaxpar.config.spelling import quoted


def validate(config: Config, since: Config | None = None) -> None:
    """Check what must hold within and between the keys of a configuration.

    A mesh axis of -1 counts as 1, and a vocabulary of null as any size: errors that do not depend on them are raised
    before devices are looked up and data is opened.

    Args:
        config: the configuration.
        since: the same configuration before an axis was filled in or the vocabulary was known, already validated: only
            the rules that depend on what has become known are run.

    Raises:
        UserError: the first thing that is wrong, in one sentence.
    """
    known = None if since is None else became_known(since, config)
    for facts, rule in _RULES:
        if known is None or not known.isdisjoint(facts):
            rule(config)


def became_known(before: Config, now: Config) -> set[str]:
    """The mesh axes, and `vocab`, that differ between two stages of one configuration."""
    axes = {axis for axis in AXES if getattr(before.parallel, axis) != getattr(now.parallel, axis)}
    return axes | ({VOCAB} if before.model.vocab != now.model.vocab else set())


def profile_steps(profile: str) -> tuple[int, int]:
    """First and last step of `run.profile`.

    Raises:
        UserError: it is not two step numbers, the second not below the first, with a colon between.
    """
    match = re.fullmatch(r"(\d{1,12}):(\d{1,12})", profile)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UserError(f"run.profile: expected first:last, for example 10:15, got {quoted(profile)}")
    return int(match[1]), int(match[2])


def _check_values(config: Config) -> None:
    """Types and choices again, because a configuration may be built in Python; then the range of each number."""
    for section, values in config_to_dict(config).items():
        for key, value in values.items():
            check_value(section, key, value)
            bound = BOUNDS.get(f"{section}.{key}")
            refusal = None if bound is None or value is None else bound.refusal(value)
            if refusal is not None:
                raise UserError(f"{section}.{key}: {refusal}, got {value}")


def _check_run(config: Config) -> None:
    run = config.run
    if run.name in ("", ".", "..") or re.search(r"[/\\\0]", run.name):
        raise UserError(
            f"run.name: expected the name of one folder, got {quoted(run.name)}; put parent folders in run.dir"
        )
    if run.wandb is not None and not re.fullmatch(r"[^/\\#?%:]{1,128}", run.wandb):
        raise UserError(
            f"run.wandb: expected the name of a project, at most 128 letters and none of /\\#?%:, got "
            f"{quoted(run.wandb)}"
        )
    if run.profile is not None and profile_steps(run.profile)[0] >= run.steps:
        raise UserError(f"run.profile: {run.profile} begins after the last of run.steps ({run.steps})")


def _check_model(config: Config) -> None:
    model = config.model
    check_kinds(model)
    _check_overrides(config)
    _divides("model.heads", model.heads, "model.kv_heads", kv_heads(model))
    if model.head_dim is None:
        _divides("model.embed", model.embed, "model.heads", model.heads, "; or set model.head_dim")
    if model.position == "rope" and head_dim(model) % 2:
        raise UserError(f"model.head_dim: rotary embeddings need an even width, got {head_dim(model)}")
    for kind, own in kind_models(model).items():
        if own.rope_scaling == "llama3" and own.rope_low_frequency >= own.rope_high_frequency:
            raise UserError(
                f"{_key(kind, 'rope_low_frequency')}: expected less than model.rope_high_frequency "
                f"({own.rope_high_frequency}), got {own.rope_low_frequency}"
            )
    if model.position == "learned" and config.data.sequence_length > model.max_positions:
        raise UserError(
            f"data.sequence_length: {config.data.sequence_length} is more than the learned positions, "
            f"model.max_positions ({model.max_positions})"
        )


def _check_overrides(config: Config) -> None:
    """The range of what each kind of layer sets, under its own name."""
    for kind, overrides in config.model.kinds.items():
        for key, value in overrides.items():
            bound = BOUNDS.get(f"model.{key}")
            refusal = bound.refusal(value) if bound is not None and isinstance(value, int | float) else None
            if refusal is not None:
                raise UserError(f"model.kinds.{kind}.{key}: {refusal}, got {value}")


def _check_axes(config: Config) -> None:
    check_axes(config.parallel)


def _check_table(config: Config) -> None:
    """Products of keys that are each in range: what no machine can hold is refused before anything is built."""
    model = config.model
    rows = padded_vocab(replace(model, vocab=model.vocab or 1))
    if rows > COUNT:
        raise UserError(
            f"model.vocab: {model.vocab} is padded to {rows}, a multiple of model.vocab_multiple "
            f"({model.vocab_multiple}); expected at most {spell_limit(COUNT)}"
        )


def _check_batches(config: Config) -> None:
    data = config.data
    tokens = data.batch_size * data.sequence_length * (1 + data.prefetch)
    if tokens > TOKENS:
        raise UserError(
            f"data.batch_size x sequence_length x (1 + prefetch): {data.batch_size} x {data.sequence_length} x "
            f"{1 + data.prefetch} tokens in memory; expected at most {spell_limit(TOKENS)}"
        )


def _check_mesh(config: Config) -> None:
    parallel = config.parallel
    devices = _known(parallel, *AXES)
    if devices > RANKS:
        layout = " x ".join(f"{axis} {size}" for axis in AXES if (size := getattr(parallel, axis)) != 1)
        raise UserError(f"parallel: the mesh ({layout}) takes {devices} devices; expected at most {spell_limit(RANKS)}")


def _check_auto(config: Config) -> None:
    if config.parallel.auto:
        for key, usual in vars(ParallelConfig(auto=True)).items():
            if getattr(config.parallel, key) != usual:
                raise UserError(
                    f"parallel.{key}: {getattr(config.parallel, key)} would not be used, because parallel: auto plans "
                    "the layout; fix it with python -m jaxpar.plan --fix, or leave out auto"
                )


def _check_heads(config: Config) -> None:
    model, tensor = config.model, _known(config.parallel, "tensor")
    _divides("model.heads", model.heads, "parallel.tensor", tensor)
    if kv_heads(model) % tensor and tensor % kv_heads(model):
        raise UserError(
            f"model.kv_heads: expected a multiple or a divisor of parallel.tensor ({tensor}), got {kv_heads(model)}"
        )
    for kind, own in kind_models(model).items():
        _divides(_key(kind, "mlp"), own.mlp, "parallel.tensor", tensor)


def _check_vocab(config: Config) -> None:
    model, parallel = config.model, config.parallel
    shared = ("pipe", "tensor") if parallel.pipe_ends == "shared" else ("tensor",)
    ways = f"parallel.{' x '.join(shared)}", _known(parallel, *shared)
    if model.vocab is None:
        _divides("model.vocab_multiple", model.vocab_multiple, *ways)
    else:
        what = f"model.vocab (padded to a multiple of {model.vocab_multiple})"
        _divides(what, padded_vocab(model), *ways, "; change model.vocab_multiple")


def _check_sequence(config: Config) -> None:
    ranks = _known(config.parallel, "context", "tensor")
    _divides("data.sequence_length", config.data.sequence_length, "parallel.context x tensor", ranks)


def _check_batch(config: Config) -> None:
    parts = _known(config.parallel, "replica", "fsdp", "expert") * config.parallel.microbatches
    _divides("data.batch_size", config.data.batch_size, "parallel.replica x fsdp x expert x microbatches", parts)


def _check_offload(config: Config) -> None:
    memory = config.memory
    if memory.offload_fraction and memory.remat == "auto":
        raise UserError(
            f"memory.offload_fraction: {memory.offload_fraction:g} takes from what memory.remat keeps, and auto "
            "chooses what goes to the host by itself; expected 0, or a memory.remat other than auto"
        )
    if memory.offload_dir is not None and memory.optimizer_offload != "file":
        raise UserError(
            f"memory.offload_dir: {quoted(memory.offload_dir)} would not be used, because memory.optimizer_offload is "
            f"{memory.optimizer_offload}; expected file with it, or null"
        )
    if memory.optimizer_resident and memory.optimizer_offload != "host":
        raise UserError(
            f"memory.optimizer_resident: {memory.optimizer_resident} bytes are for a state that is offloaded to the "
            f"host, and memory.optimizer_offload is {memory.optimizer_offload}; expected host, or 0 bytes"
        )


def _check_weights_offload(config: Config) -> None:
    memory, parallel = config.memory, config.parallel
    if memory.weights_offload == "none":
        if memory.weights_resident:
            raise UserError(
                f"memory.weights_resident: {memory.weights_resident} bytes are for layers whose weights are offloaded, "
                "and memory.weights_offload is none; expected host, or 0 bytes"
            )
        return
    said = "memory.weights_offload: host"
    if memory.optimizer_offload != "host":
        raise UserError(
            f"{said} reads layers from the master weights in host memory, and memory.optimizer_offload is "
            f"{memory.optimizer_offload}; expected memory.optimizer_offload: host with it"
        )
    if memory.optimizer_resident:
        raise UserError(
            f"{said} leaves no master weights on the device, and memory.optimizer_resident is "
            f"{memory.optimizer_resident}; expected 0 bytes"
        )
    if config.model.kinds:
        raise UserError(
            f"{said} is for layers that are all alike, and model.kinds declares {', '.join(config.model.kinds)}; "
            "expected none with it"
        )
    if parallel.pipe != 1:
        raise UserError(
            f"{said} is for runs without a pipeline, and parallel.pipe is {parallel.pipe}; expected 1, as a pipeline "
            "would fetch every layer over the link in each of its ticks"
        )
    if parallel.zero in (1, 2) and _known(parallel, "fsdp", "expert", "context") != 1:
        raise UserError(
            f"{said} reads each layer from its master weights, and under parallel.zero: {parallel.zero} these are "
            "sharded differently from the weights; expected 0 or 3"
        )
    if config.optimizer.name == "adafactor":
        raise UserError(
            f"{said} updates weights some layers at a time, and optimizer.name: adafactor takes the matrices of all "
            "layers at once; expected adamw, muon or lion"
        )


def _check_tiles(config: Config) -> None:
    """An axis of -1 counts as 1, so there are at most as many tokens as this finds."""
    parallel, data = config.parallel, config.data
    ranks = _known(parallel, "replica", "fsdp", "expert", "context", "tensor") * parallel.microbatches
    tokens = data.batch_size * data.sequence_length // ranks
    for key in ("loss_tiles", "mlp_tiles"):
        tiles = getattr(config.memory, key)
        if tiles is not None and tiles > tokens:
            raise UserError(
                f"memory.{key}: expected at most as many as a device has tokens in a microbatch ({tokens}), got {tiles}"
            )


def _check_pipeline(config: Config) -> None:
    """Checks that do not depend on the schedule; `jaxpar.layout.choices.pipeline` has the others."""
    parallel, layers = config.parallel, config.model.layers
    if parallel.pipe == 1:
        defaults = ParallelConfig()
        for key in ("schedule", "virtual_stages", "stage_layers", "pipe_ends", "pipe_ticks"):
            value = getattr(parallel, key)
            if value not in (getattr(defaults, key), "one-stage"):
                shown = list(value) if isinstance(value, tuple) else value
                raise UserError(f"parallel.{key}: {shown} would not be used, because parallel.pipe is 1")
    if parallel.pipe_ends == "shared" and parallel.pipe_ticks == "branching":
        raise UserError(
            "parallel.pipe_ends: shared needs all pipeline ranks in each loss, and parallel.pipe_ticks: branching lets "
            "each rank do its own; expected last, or uniform ticks"
        )
    if parallel.stage_layers is not None:
        if min(parallel.stage_layers, default=0) < 1:
            raise UserError(f"parallel.stage_layers: every chunk needs a layer, got {list(parallel.stage_layers)}")
        if sum(parallel.stage_layers) != layers:
            raise UserError(
                f"parallel.stage_layers: {list(parallel.stage_layers)} are {sum(parallel.stage_layers)} layers, and "
                f"model.layers is {layers}"
            )
    elif parallel.pipe * (parallel.virtual_stages or 1) > layers:
        raise UserError(
            f"parallel.pipe x virtual_stages: {parallel.pipe} x {parallel.virtual_stages or 1} chunks are more than "
            f"the {layers} layers of the model (model.layers)"
        )


def _check_unused(config: Config) -> None:
    for unused in unused_settings(config):
        raise UserError(str(unused))


def _check_optimizer(config: Config) -> None:
    """A run may be shorter than its warm-up (it then ends within it); a schedule with an explicit end may not."""
    optimizer = config.optimizer
    end, warmup = optimizer.decay_steps, optimizer.warmup_steps
    if config.evaluation.ema and optimizer.ema is None:
        raise UserError(
            "evaluation.ema: true needs a moving average of the weights, and optimizer.ema is null; expected "
            "optimizer.ema with it (for example 0.999), or evaluation.ema: false"
        )
    if optimizer.name == "adafactor" and config.precision.moments != "float32":
        raise UserError(
            f"precision.moments: expected float32 with optimizer.name: adafactor, whose means of rows and columns are "
            f"small already, got {config.precision.moments}"
        )
    if end is None:
        return
    if warmup > end:
        raise UserError(f"optimizer.warmup_steps: {warmup} is more than optimizer.decay_steps ({end})")
    if optimizer.schedule == "wsd" and warmup > end * (1 - optimizer.decay_fraction):
        raise UserError(
            f"optimizer.decay_fraction: {optimizer.decay_fraction} of {end} steps begins to fall within the "
            f"optimizer.warmup_steps ({warmup})"
        )


def _check_data(config: Config) -> None:
    data = config.data
    if data.source == "tokens":
        _check_tokens(data)
        return
    for key in ("path", "sources", "heldout_path", "separator"):
        if getattr(data, key) is not None:
            raise UserError(
                f"data.{key}: {quoted(getattr(data, key))} would not be used, because data.source is {data.source}; "
                "expected data.source: tokens with it, or null"
            )


def _check_tokens(data: DataConfig) -> None:
    if data.path is None and data.sources is None:
        raise UserError("data.path: null, and data.source: tokens needs the path of a token folder or a file of tokens")
    if data.path is not None and data.sources is not None:
        raise UserError(
            f"data.path: {quoted(data.path)} is given with data.sources, which names {len(data.sources)} folders; "
            "expected one of the two keys, and null for the other"
        )
    if data.path == "":
        raise UserError("data.path: expected the path of a token folder or a file of tokens, got an empty text")
    if data.sources is None:
        return
    for path, weight in data.sources.items():
        if not path or weight < 0:
            raise UserError(f"data.sources: expected paths with weights of at least 0, got {quoted(path)}: {weight:g}")
    if sum(data.sources.values()) <= 0:
        raise UserError("data.sources: expected at least one path with a weight above 0")


def _check_watch(config: Config) -> None:
    if config.watch.on_spike != "rollback":
        return
    if config.watch.spike is None:
        raise UserError("watch.on_spike: rollback needs spikes to be detected, and watch.spike is null")
    if config.checkpoint.every == 0:
        raise UserError(
            "watch.on_spike: rollback needs checkpoints to go back to, and checkpoint.every is 0; expected the steps "
            "between two saves"
        )


def _check_distributed(config: Config) -> None:
    """Keys that are null are filled in and checked by `jaxpar.distributed.job`."""
    distributed = config.distributed
    processes, process_id = distributed.processes, distributed.process_id
    if processes is not None and process_id is not None and process_id >= processes:
        raise UserError(
            f"distributed.process_id: expected less than distributed.processes ({processes}), got {process_id}"
        )
    if distributed.coordinator is not None and not re.fullmatch(r".+:[0-9]{1,5}", distributed.coordinator):
        raise UserError(f"distributed.coordinator: expected host:port, got {quoted(distributed.coordinator)}")
    if distributed.secret_file == "":
        raise UserError("distributed.secret_file: expected the path of a file with the job's secret, got an empty text")


def _key(kind: str, key: str) -> str:
    """The name of a key within a kind of layers."""
    return f"model.kinds.{kind}.{key}" if kind else f"model.{key}"


def _known(parallel: ParallelConfig, *axes: str) -> int:
    return prod(size for axis in axes if (size := getattr(parallel, axis)) != -1)


def _divides(key: str, size: int, by: str, divisor: int, otherwise: str = "") -> None:
    if size % divisor:
        below = size // divisor * divisor
        near = f"{below} or {below + divisor}" if below else f"{divisor}"
        raise UserError(f"{key}: {size} is not divisible by {by} ({divisor}); expected for example {near}{otherwise}")


VOCAB = "vocab"
"""The name by which a rule depends on the vocabulary; the other names are mesh axes."""

_RULES: tuple[tuple[tuple[str, ...], Callable[[Config], None]], ...] = (
    ((), _check_values),
    ((), _check_run),
    ((), _check_model),
    ((), _check_axes),
    ((VOCAB,), _check_table),
    ((), _check_batches),
    (AXES, _check_mesh),
    ((), _check_auto),
    (("pipe",), _check_pipeline),
    (("tensor",), _check_heads),
    ((VOCAB, "pipe", "tensor"), _check_vocab),
    (("context", "tensor"), _check_sequence),
    (("replica", "fsdp", "expert"), _check_batch),
    (("replica", "fsdp", "expert", "context", "tensor"), _check_tiles),
    ((), _check_offload),
    (("pipe", "fsdp", "expert", "context"), _check_weights_offload),
    ((), _check_unused),
    ((), _check_optimizer),
    ((), _check_data),
    ((), _check_watch),
    ((), _check_distributed),
)
"""The rules in the order in which they run, each with the mesh axes that it depends on."""

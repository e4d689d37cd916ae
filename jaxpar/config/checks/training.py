"""Checks of the optimizer, its schedule and the data."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from jaxpar.config.bounds import TOKENS, spell_limit
from jaxpar.config.errors import UserError
from jaxpar.config.mappings.matmul import OF_TILES
from jaxpar.config.parts import DATA_SOURCES, OBJECTIVES, OPTIMIZERS
from jaxpar.config.reading.options import options_of
from jaxpar.config.reading.typed import spell
from jaxpar.config.schema import Config, DataConfig
from jaxpar.config.spelling import did_you_mean, join_or, quoted

_PATHS = {
    "prompts": "a task or a file of prompts",
    "demonstrations": "a task or a file of prompts",
    "stream": "a file of text, a pattern or a folder of such files",
}
"""The meaning of `data.path` for other sources than `tokens`."""
ROUNDING = 1e-6
"""Steps by which a share of the steps may be rounded."""


def check_optimizer(config: Config) -> None:
    """A run may be shorter than its warm-up (it then ends within it); a schedule with an explicit end may not."""
    optimizer, steps = config.optimizer, config.run.steps
    options_of(optimizer)
    end, warmup = optimizer.decay_steps, optimizer.warmup_steps
    if config.evaluation.ema and optimizer.ema is None:
        raise UserError(
            "evaluation.ema: true needs a moving average of the weights, and optimizer.ema is null; expected "
            "optimizer.ema with it (for example 0.999), or evaluation.ema: false"
        )
    if not OPTIMIZERS[optimizer.name].rounds and config.precision.moments != "float32":
        raise UserError(
            f"precision.moments: expected float32 with optimizer.name: {optimizer.name}, which stores no moments in "
            f"another form, got {config.precision.moments}"
        )
    if end is None and warmup >= steps:
        return
    last, key = (steps, "run.steps") if end is None else (end, "optimizer.decay_steps")
    if warmup > last:
        raise UserError(f"optimizer.warmup_steps: {warmup} is more than {key} ({last})")
    falls = last - optimizer.decay_fraction * last
    if optimizer.schedule == "wsd" and warmup > falls + ROUNDING:
        raise UserError(
            f"optimizer.decay_fraction: {optimizer.decay_fraction} of {last} steps ({key}) begins to fall at step "
            f"{falls:g}, within the optimizer.warmup_steps ({warmup}); expected at most {1 - warmup / last:.4g}"
        )


def check_data(config: Config) -> None:
    """Refuse data keys that belong to another source, and a stream that a teacher would read first."""
    data, unset = config.data, DataConfig()
    if data.source == "stream" and OBJECTIVES[config.loss.name].teacher:
        raise UserError(
            f"loss.name: {config.loss.name} with data.source: stream would tokenize all text of the run for the "
            "teacher before the first step; expected data.source: tokens, with a folder of python -m jaxpar.prepare"
        )
    keys = DATA_SOURCES[data.source].keys
    for key in dict.fromkeys(key for source in DATA_SOURCES.values() for key in source.keys):
        if key not in keys and getattr(data, key) != getattr(unset, key):
            readers = [name for name, source in DATA_SOURCES.items() if key in source.keys]
            raise UserError(
                f"data.{key}: {quoted(getattr(data, key))} would not be used, because data.source is {data.source}; "
                f"expected data.source: {join_or(readers)} with it, or {spell(getattr(unset, key))}"
            )
    if "path" in keys:
        _check_path(data)


def _check_path(data: DataConfig) -> None:
    """Refuse data from a path without one, or with two."""
    if data.path is None and data.sources is None:
        raise UserError(
            f"data.path: null, and data.source: {data.source} needs "
            + _PATHS.get(data.source, "the path of a token folder or a file of tokens")
        )
    if data.path is not None and data.sources is not None:
        raise UserError(
            f"data.path: {quoted(data.path)} is given with data.sources, which names {len(data.sources)} folders; "
            "expected one of the two keys, and null for the other"
        )
    if data.path == "":
        raise UserError("data.path: expected the path of a token folder or a file of tokens, got an empty text")
    _check_validation(data)
    if data.sources is None:
        for key in ("later_sources", "max_epochs"):
            if getattr(data, key):
                raise UserError(f"data.{key}: it is for data.sources: expected that too")
        return
    _check_weights("data.sources", data.sources)
    before = 0
    for index, later in enumerate(data.later_sources):
        _check_weights(f"data.later_sources[{index}].sources", later.sources)
        if later.after <= before:
            raise UserError(
                f"data.later_sources[{index}].after: {later.after}, and the weights before it are after {before}; "
                "expected them in order"
            )
        before = later.after
    _check_max_epochs(data, {*data.sources, *(path for later in data.later_sources for path in later.sources)})


def _check_weights(key: str, weights: Mapping[str, float]) -> None:
    for path, weight in weights.items():
        if not path or weight < 0:
            raise UserError(f"{key}: expected paths with weights of at least 0, got {quoted(path)}: {weight:g}")
    if sum(weights.values()) <= 0:
        raise UserError(f"{key}: expected at least one path with a weight above 0")


def _check_max_epochs(data: DataConfig, known: Collection[str]) -> None:
    for path, most in (data.max_epochs or {}).items():
        if path not in known:
            raise UserError(f"data.max_epochs: {quoted(path)} is none of data.sources{did_you_mean(path, known)}")
        if most <= 0:
            raise UserError(f"data.max_epochs: {quoted(path)}: {most:g}; expected more than 0")


def _check_validation(data: DataConfig) -> None:
    if data.validation is None:
        return
    if data.validation_path is not None:
        raise UserError(
            "data.validation_path: it is set with data.validation, which names folders too; expected one of the two"
        )
    if not data.validation:
        raise UserError("data.validation: expected names with token folders, or null")
    for name in data.validation:
        if not re.fullmatch(r"[A-Za-z0-9_]{1,40}", name):
            raise UserError(
                f"data.validation: {quoted(name)}: expected a name of at most 40 letters, digits and underscores, "
                "which names its curve"
            )


def check_batches(config: Config) -> None:
    """Refuse batches of more tokens than memory can hold."""
    data = config.data
    tokens = data.batch_size * data.sequence_length * (1 + data.prefetch)
    if tokens > TOKENS:
        raise UserError(
            f"data.batch_size x sequence_length x (1 + prefetch): {data.batch_size} x {data.sequence_length} x "
            f"{1 + data.prefetch} tokens in memory; expected at most {spell_limit(TOKENS)}"
        )
    _check_ramp(config)


def _check_ramp(config: Config) -> None:
    data = config.data
    sizes = [*(part.size for part in data.batch_ramp), data.batch_size]
    for index, part in enumerate(data.batch_ramp):
        if (part.steps is None) == (part.tokens is None):
            raise UserError(f"data.batch_ramp[{index}]: expected either steps or tokens with the size {part.size}")
        if part.size >= sizes[index + 1]:
            raise UserError(
                f"data.batch_ramp[{index}].size: {part.size} is followed by {sizes[index + 1]}; expected sizes that "
                "grow, the last up to data.batch_size"
            )
    others = {
        f"data.source: {data.source}": data.source == "stream" or "rl" in DATA_SOURCES[data.source].run,
        "data.routing": data.routing is not None,
        "islands": config.parallel.islands != 1 or config.islands.folder is not None,
    }
    if data.batch_ramp and (other := next((name for name, is_set in others.items() if is_set), None)):
        raise UserError(f"data.batch_ramp: batches of {other} have one size; expected [] with it")


def check_matmul(config: Config) -> None:
    """Refuse what a recipe cannot be combined with, and exceptions that leave nothing."""
    precision, layers = config.precision, config.model.layers
    recipe, options = precision.matmul, precision.matmul_options
    if recipe is None:
        return
    if precision.compute == "float16":
        raise UserError(
            f"precision.matmul: {recipe} needs the range of bfloat16 between matmuls, and precision.compute is "
            "float16; expected precision.compute: bfloat16 with it, or precision.matmul: null"
        )
    if options.first_layers + options.last_layers >= layers:
        raise UserError(
            f"precision.matmul_options: first_layers {options.first_layers} and last_layers {options.last_layers} "
            f"leave none of the {layers} layers of the model (model.layers) to {recipe}; expected fewer, or "
            "precision.matmul: null"
        )
    if config.parallel.overlap.tensor == "ring" and recipe in OF_TILES:
        raise UserError(
            f"parallel.overlap.tensor: ring has no matmuls with scales of tiles, and precision.matmul is {recipe}; "
            "expected auto or plain, or a recipe without tiles"
        )
    if (config.memory.mlp_tiles or 1) > 1:
        raise UserError(
            f"memory.mlp_tiles: {config.memory.mlp_tiles} would give each tile scales of its own under "
            f"precision.matmul: {recipe}; expected 1 or null"
        )

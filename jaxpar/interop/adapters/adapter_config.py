"""`adapter_config.json` of a folder in PEFT's format: which factors it is of, and how they are scaled."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.config.reading.json_text import parse_json
from jaxpar.config.reading.text_file import LONGEST_WRITTEN, read_text_file
from jaxpar.config.spelling import cut, named, one_of, printable, quoted
from jaxpar.interop.adapters.expert_factors import check_targets

CONFIG = "adapter_config.json"
LARGEST_ALPHA = 1e30
MOST_REPETITIONS = 3
"""Repetitions in a regular expression: matching takes the length of a name to the power of one more, in the worst
case."""
MOST_PATTERNS, MOST_REPEATING, LONGEST_PATTERN = 2**14, 32, 1000
"""Regular expressions, those of them with repetitions, and letters: each is matched with the name of each module."""
FREE = frozenset((
    "auto_mapping", "base_model_name_or_path", "inference_mode", "peft_type", "peft_version", "revision", "task_type",
    "exclude_modules", "layers_pattern", "layers_to_transform", "target_modules", "target_parameters",
    "alpha_pattern", "lora_alpha", "r", "rank_pattern",
    "corda_config", "eva_config", "loftq_config", "lora_ga_config",
    "ensure_weight_tying", "ephemeral_gpu_offload", "fan_in_fan_out", "lora_dropout", "megatron_config",
    "megatron_core", "qalora_group_size", "runtime_config",
))  # fmt: skip
"""Keys of `adapter_config.json` that say which matrices have factors, how they are scaled or how they were trained."""
PLAIN: dict[str, tuple[object, ...]] = {
    "bias": ("none",), "use_rslora": (False, True, None),
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal", "mica"),
}  # fmt: skip
"""Other keys with the values that change nothing beside the factors. Other initial values, as those of PiSSA, are
subtracted from the base; PEFT's `path_initial_model_for_weight_conversion` writes factors of the base as it was."""
OFF: tuple[object, ...] = (False, None, [], {})
"""The values that change nothing of every other key."""


def config_of(folder: Path, key: str) -> Mapping[str, object]:
    """The contents of `adapter_config.json`. Raises `UserError` for what is not plain factors."""
    file = folder / CONFIG
    try:
        config = parse_json(read_text_file(file, LONGEST_WRITTEN), named(file))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "it is not UTF-8")
        raise UserError(f"{key}: {named(file)} cannot be read ({why})") from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise UserError(f"{key}: {named(file)} is no adapter of LoRA; expected peft_type: LORA")
    for name, value in config.items():
        values = PLAIN.get(name, OFF)
        if name not in FREE and not any(value == one and type(value) is type(one) for one in values):
            expected, name = one_of(map(repr, values)), printable(cut(name, 60))
            raise UserError(f"{key}: {named(file)}: {name} is {quoted(value, 60)}; expected {expected}")
    for name, every in (("lora_alpha", [config.get("lora_alpha")]), ("alpha_pattern", _alphas(config).values())):
        if not all(isinstance(alpha, (int, float)) and abs(alpha) <= LARGEST_ALPHA for alpha in every):
            what = (
                f"a number of at most {LARGEST_ALPHA:.0e}" if name == "lora_alpha" else "numbers by the ends of names"
            )
            raise UserError(f"{key}: {named(file)}: {name} is {quoted(config.get(name), 60)}; expected {what}")
    _check_patterns(_alphas(config), f"{key}: {named(file)}")
    check_targets(config.get("target_parameters") or (), f"{key}: {named(file)}")
    return config


def _alphas(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """`alpha_pattern`, by regular expressions of the ends of names of modules."""
    pattern = config.get("alpha_pattern") or {}
    return pattern if isinstance(pattern, dict) else {"": None}


def _check_patterns(patterns: Collection[str], where: str) -> None:
    longest, repeating = max(map(len, patterns), default=0), 0
    if len(patterns) > MOST_PATTERNS or longest > LONGEST_PATTERN:
        raise UserError(
            f"{where}: alpha_pattern has {len(patterns)} patterns, of up to {longest} letters; expected at most "
            f"{MOST_PATTERNS} of {LONGEST_PATTERN}"
        )
    for pattern in patterns:
        try:
            _ending(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise UserError(
                f"{where}: alpha_pattern has {quoted(pattern, 60)}, which is no regular expression ({error}); expected "
                "one of the ends of names"
            ) from None
        repetitions = re.findall(r"(?<!\()[*+?{]", pattern)  # a question mark behind a parenthesis is none
        if re.search(r"\)[*+{]", pattern) or len(repetitions) > MOST_REPETITIONS:
            raise UserError(
                f"{where}: alpha_pattern has {quoted(pattern, 60)}, and matching what repeats groups, or repeats more "
                f"than {MOST_REPETITIONS} times, may not end; expected a simpler one, or names"
            )
        repeating += bool(repetitions)
    if repeating > MOST_REPEATING:
        raise UserError(
            f"{where}: alpha_pattern has {repeating} patterns that repeat something; expected at most {MOST_REPEATING}"
        )


@cache
def _ending(pattern: str) -> re.Pattern[str]:
    """The expression that PEFT matches with a module's name. Raises `re.error` for a wrong pattern."""
    return re.compile(rf"(.*\.)?({pattern})$")


def scale_of(config: Mapping[str, Any], module: str, rank: int) -> np.float32:
    """The factor of the product of a module's factors."""
    of_module = [alpha for pattern, alpha in _alphas(config).items() if _ending(pattern).match(module)]
    alpha = [*of_module, config["lora_alpha"]][0]
    return np.float32(alpha / (rank**0.5 if config.get("use_rslora") else rank))

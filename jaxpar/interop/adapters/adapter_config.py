"""`adapter_config.json` of a folder in PEFT's format: which factors it is of, and how they are scaled."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.config.reading.json_text import parse_json
from jaxpar.config.reading.text_file import LONGEST_WRITTEN, read_text_file
from jaxpar.config.spelling import cut, join_or, named, printable, quoted
from jaxpar.interop.adapters.expert_factors import check_targets

CONFIG = "adapter_config.json"
LARGEST_ALPHA = 1e30
MOST_REPETITIONS = 3
"""Repetitions in a regular expression: matching takes the length of a name to the power of one more, in the worst
case."""
MOST_CHOICES = 20_000
"""Ways through an expression: the product of its branches, and 10 for each repetition."""
MOST_PATTERNS, MOST_REPEATING, MOST_LETTERS = 256, 32, 2**14
"""Regular expressions, those of them with repetitions, and letters of all: each is matched with the name of each
module, but for names."""
_NAME = re.compile(r"\^?[\w.-]*")
FREE = frozenset((
    "auto_mapping", "base_model_name_or_path", "inference_mode", "peft_type", "peft_version", "revision", "task_type",
    "exclude_modules", "layers_pattern", "layers_to_transform", "target_modules", "target_parameters",
    "alpha_pattern", "lora_alpha", "r", "rank_pattern",
    "corda_config", "eva_config", "loftq_config", "lora_ga_config",
    "ensure_weight_tying", "ephemeral_gpu_offload", "fan_in_fan_out", "lora_dropout", "megatron_config",
    "megatron_core", "qalora_group_size", "runtime_config",
))  # fmt: skip
"""Keys of `adapter_config.json` that say which matrices have factors, how they are scaled or how they were trained."""
PLAIN_LORA_OPTIONS: dict[str, tuple[object, ...]] = {
    "bias": ("none",), "use_rslora": (False, True, None),
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal", "mica"),
}  # fmt: skip
"""Other keys with the values that change nothing beside the factors. Other initial values, as those of PiSSA, are
subtracted from the base; PEFT's `path_initial_model_for_weight_conversion` writes factors of the base as it was."""
OFF: tuple[object, ...] = (False, None, [], {})
"""The values that change nothing of every other key."""


def config_of(folder: Path, key: str) -> tuple[Mapping[str, object], Scales]:
    """The contents of `adapter_config.json`. Raises `UserError` for what is not plain factors."""
    file = folder / CONFIG
    try:
        config = parse_json(read_text_file(file, LONGEST_WRITTEN), named(file))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "it is not UTF-8")
        raise UserError(f"{key}: {named(file)} cannot be read ({why})") from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise UserError(f"{key}: {named(file)} is not an adapter of LoRA; expected peft_type: LORA")
    for name, value in config.items():
        values = PLAIN_LORA_OPTIONS.get(name, OFF)
        if name not in FREE and not any(value == one and type(value) is type(one) for one in values):
            expected, name = join_or(map(repr, values)), printable(cut(name, 60))
            raise UserError(f"{key}: {named(file)}: {name} is {quoted(value, 60)}; expected {expected}")
    for name, every in (("lora_alpha", [config.get("lora_alpha")]), ("alpha_pattern", _alphas(config).values())):
        if not all(isinstance(alpha, (int, float)) and abs(alpha) <= LARGEST_ALPHA for alpha in every):
            what = (
                f"a number of at most {LARGEST_ALPHA:.0e}" if name == "lora_alpha" else "numbers by the ends of names"
            )
            raise UserError(f"{key}: {named(file)}: {name} is {quoted(config.get(name), 60)}; expected {what}")
    scales = Scales(config, f"{key}: {named(file)}")
    check_targets(config.get("target_parameters") or (), f"{key}: {named(file)}")
    return config, scales


def _alphas(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """`alpha_pattern`, by regular expressions of the ends of names of modules."""
    pattern = config.get("alpha_pattern") or {}
    return pattern if isinstance(pattern, dict) else {"": None}


class Scales:
    """The factors of the products of each module's factors. Raises `UserError` for expressions that take too long.

    Args:
        config: `adapter_config.json`.
        where: names it.
    """

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        patterns = [pattern.replace(r"\.", ".") if _is_name(pattern) else pattern for pattern in _alphas(config)]
        others = [index for index, pattern in enumerate(patterns) if not _is_name(pattern)]
        expressions = _expressions([patterns[index] for index in others], where)
        self._stabilized = bool(config.get("use_rslora"))
        self._alphas = [*_alphas(config).values(), config["lora_alpha"]]
        self._expressions = list(zip(others, expressions, strict=True))
        self._names = {patterns[index]: index for index in reversed(range(len(patterns)))}

    def factor(self, module: str, rank: int) -> np.float32:
        """The factor of a module: that of the first pattern that matches the end of its name, from a full stop on."""
        suffixes = ["^" + module, module, *(module[stop.end() :] for stop in re.finditer(r"\.", module))]
        name = min((self._names[end] for end in suffixes if end in self._names), default=len(self._alphas) - 1)
        matched = (index for index, expression in self._expressions if index < name and expression.match(module))
        return np.float32(self._alphas[next(matched, name)] / (rank**0.5 if self._stabilized else rank))


def _is_name(pattern: str) -> bool:
    """Whether a pattern is a name, whose full stops are taken for full stops."""
    return _NAME.fullmatch(pattern.replace(r"\.", ".")) is not None


def _expressions(patterns: Sequence[str], where: str) -> list[re.Pattern[str]]:
    """The expressions that PEFT matches with a module's name."""
    letters = sum(map(len, patterns))
    if len(patterns) > MOST_PATTERNS or letters > MOST_LETTERS:
        raise UserError(
            f"{where}: alpha_pattern has {len(patterns)} regular expressions, of {letters} letters; expected at most "
            f"{MOST_PATTERNS} of {MOST_LETTERS}"
        )
    compiled, repeating = [], 0
    for pattern in patterns:
        try:
            compiled.append(re.compile(rf"(.*\.)?({pattern})$"))
        except (re.error, OverflowError, RecursionError) as error:
            raise UserError(
                f"{where}: alpha_pattern has {quoted(pattern, 60)}, which is no regular expression ({error}); expected "
                "one of the ends of names"
            ) from None
        repetitions = len(re.findall(r"(?<!\()[*+?{]", pattern))  # a question mark behind a parenthesis is none
        choices = prod(1 + part.count("|") for part in pattern.split("(")) * 10**repetitions
        if re.search(r"\)[*+{]", pattern) or repetitions > MOST_REPETITIONS or choices > MOST_CHOICES:
            raise UserError(
                f"{where}: alpha_pattern has {quoted(pattern, 60)}, and matching what repeats groups, repeats more "
                f"than {MOST_REPETITIONS} times, or has so many branches, may not end; expected a simpler one, or "
                "names"
            )
        repeating += repetitions > 0
    if repeating > MOST_REPEATING:
        raise UserError(
            f"{where}: alpha_pattern has {repeating} patterns that repeat something; expected at most {MOST_REPEATING}"
        )
    return compiled

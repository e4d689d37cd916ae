"""The mapping `optimizer.options`: its members are those of the record that `optimizer.name` has in the registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from inspect import get_annotations
from typing import Any, Literal

from jaxpar.config.parts import OPTIMIZERS, implementation
from jaxpar.config.reading.typed import checked_members, field_types, record_from_plain
from jaxpar.config.schema import Config, OptimizerConfig

OPTIONS = "optimizer.options"


def record_of(name: str) -> type:
    """The dataclass of the options of an optimizer."""
    return implementation(OPTIMIZERS[name].options)


def options_of(optimizer: OptimizerConfig) -> Any:
    """`optimizer.options` as the dataclass of `optimizer.name`, with defaults for what it does not name.

    Raises:
        UserError: a name is unknown, or a value is of another type.
    """
    return record_from_plain(record_of(optimizer.name), optimizer.options, OPTIONS)


def check_written(optimizer: Mapping[str, Any]) -> None:
    """Check the written options of an optimizer. Those that only others have stay: an override may name one of these,
    and `check_unused` refuses them otherwise.

    Raises:
        UserError: no optimizer has an option, or a value is of the wrong type or out of range.
    """
    record, options = record_of(optimizer.get("name", OptimizerConfig.name)), optimizer.get("options", {})
    usual = field_types(record)
    checked_members(record, {key: one for key, one in options.items() if key in usual or not readers(key)}, OPTIONS)


def matrix_dtype(optimizer: OptimizerConfig) -> Literal["auto", "float32", "bfloat16"]:
    """The option `matrix_dtype`: the dtype of an update's matmuls, or `auto` of an optimizer without that option."""
    return getattr(options_of(optimizer), "matrix_dtype", "auto")


def with_all_options(config: Config) -> Config:
    """`config` with every option of its optimizer, at its default where it is not named."""
    usual = vars(record_of(config.optimizer.name)())
    return replace(config, optimizer=replace(config.optimizer, options=usual | config.optimizer.options))


def readers(key: str) -> list[str]:
    """The optimizers that have an option of this name."""
    return [name for name in OPTIMIZERS if key in field_types(record_of(name))]


def same_option(key: str, first: str, second: str) -> bool:
    """Whether an option means the same to two optimizers: both have it from one dataclass."""
    return declaring(record_of(first), key) is declaring(record_of(second), key)


def declaring(record: type, key: str) -> type | None:
    """The dataclass, among `record` and what it inherits from, that declares a field; None if none does."""
    return next((one for one in record.__mro__ if key in get_annotations(one)), None)

"""The lines of a family's table about `config.json`: each reads some of its keys, and writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from jaxpar.config.bounds import COUNT
from jaxpar.config.errors import UserError
from jaxpar.config.reading.sections import keys_of
from jaxpar.config.reading.typed import checked
from jaxpar.config.schema import ModelConfig
from jaxpar.config.spelling import join_or, quoted

REQUIRED = object()
"""Default of a required key."""


@dataclass(frozen=True)
class HFConfig:
    """The contents of a `config.json`."""

    file: str
    """Name of the file, for messages."""
    values: Mapping[str, object]

    def get(self, key: str, default: object = None) -> object:
        """The value of a key; `default` where it is absent.

        Raises:
            UserError: it is absent and required.
        """
        if key in self.values:
            return self.values[key]
        if default is REQUIRED:
            raise UserError(f"{self.file}: {key} is missing")
        return default

    def typed(self, key: str, ours: str, default: object = None) -> Any:
        """The same, checked to be of the type and in the range of our key `model.<ours>`."""
        return self.checked_value(key, self.get(key, default), ours)

    def checked_value(self, key: str, value: object, ours: str) -> Any:
        """A value of `key`, checked to be of the type and in the range of our key `model.<ours>`."""
        return checked(f"{self.file}: {key}", value, keys_of("model")[ours])

    def agreed(self, *spellings: str) -> str:
        """The spelling that `config.json` has of a key; the first one if it has none, or several with one value.

        Raises:
            UserError: two have values that differ.
        """
        stated = self.agreed_of({key: self.get(key) for key in spellings})
        return spellings[0] if stated is None else stated[0]

    def agreed_of(self, stated: Mapping[str, object]) -> tuple[str, object] | None:
        """The first of several keys for one thing that is not null, and its value; None if all are null.

        Raises:
            UserError: another one has a value that differs.
        """
        (first, value), *others = [one for one in stated.items() if one[1] is not None] or [(None, None)]
        for key, other in others:
            if other != value or isinstance(other, bool) != isinstance(value, bool):
                raise UserError(
                    f"{self.file}: {first} is {quoted(value, 80)}, and {key} is {quoted(other, 80)}; expected the "
                    "same, or one of them"
                )
        return None if first is None else (first, value)

    def positive(self, key: str, default: object) -> float:
        """The value of a key that is a number above 0.

        Raises:
            UserError: it is something else, or not finite.
        """
        value = self.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise self.refusal(key, value, "a number above 0")
        return value

    def integer(self, key: str, default: object = REQUIRED) -> int:
        """The value of a key that counts something, at least 1.

        Raises:
            UserError: it is absent and required, or something else.
        """
        value = self.get(key, default)
        if type(value) is not int or not 1 <= value <= COUNT:
            raise self.refusal(key, value, "a whole number, at least 1")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """The value of a key that is true or false.

        Raises:
            UserError: it is something else.
        """
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.refusal(key, value, "true or false")
        return value

    def refusal(self, key: str, value: object, expected: str) -> UserError:
        """The error of a key whose value our model does not support."""
        return UserError(f"{self.file}: {key} is {quoted(value, 80)}, which is not supported; expected {expected}")


class Entry(Protocol):
    """A line about keys of the whole model."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the keys in `config.json`."""
        ...

    def read(self, hf_config: HFConfig) -> dict[str, object]:
        """Keys of our model section. Raises `UserError` for a value that it does not have."""
        ...

    def write(self, model: ModelConfig) -> dict[str, object]:
        """Keys of `config.json`, for a model whose heads are resolved."""
        ...


class LayerEntry(Protocol):
    """A line about keys whose value may differ from layer to layer."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the keys in `config.json`."""
        ...

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        """Keys of our model section, for each layer."""
        ...

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        """Keys of `config.json`, for the model of each layer."""
        ...


@dataclass(frozen=True)
class Same:
    """A value that both have, under two names."""

    theirs: str
    ours: str
    default: object = REQUIRED
    """The value where `config.json` lacks the key."""
    annotation: object = None
    """The type that they have, where ours has more values."""
    also: tuple[str, ...] = ()
    """Further spellings of the key, which are not written."""

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.theirs, *self.also)

    def read(self, hf_config: HFConfig) -> dict[str, object]:
        value = hf_config.typed(hf_config.agreed(self.theirs, *self.also), self.ours, self.default)
        if self.annotation is not None:
            checked(f"{hf_config.file}: {self.theirs}", value, self.annotation)
        return {self.ours: value}

    def write(self, model: ModelConfig) -> dict[str, object]:
        return {self.theirs: getattr(model, self.ours)}


@dataclass(frozen=True)
class Converted:
    """A value that both have, which one is a function of the other."""

    theirs: str
    ours: str
    default: object
    to_ours: Callable[[float], object]
    to_theirs: Callable[[ModelConfig], object]

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.theirs,)

    def read(self, hf_config: HFConfig) -> dict[str, object]:
        return {self.ours: self.to_ours(hf_config.positive(self.theirs, self.default))}

    def write(self, model: ModelConfig) -> dict[str, object]:
        return {self.theirs: self.to_theirs(model)}


@dataclass(frozen=True)
class QkvBias:
    """A key for biases of queries, keys and values, where attention's output has none."""

    theirs: str
    default: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.theirs,)

    def read(self, hf_config: HFConfig) -> dict[str, object]:
        return {"attention_bias": "qkv" if hf_config.flag(self.theirs, self.default) else False}

    def write(self, model: ModelConfig) -> dict[str, object]:
        return {self.theirs: bool(model.attention_bias)}


@dataclass(frozen=True)
class Only:
    """A key for which our model supports only some equivalent values."""

    theirs: str
    values: tuple[object, ...]
    """Supported values; the first is written, and is the default if `config.json` has none."""

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.theirs,)

    def read(self, hf_config: HFConfig) -> dict[str, object]:
        value = hf_config.get(self.theirs)
        if value is not None and value not in self.values:
            raise hf_config.refusal(self.theirs, value, join_or([str(value) for value in self.values]))
        return {}

    def write(self, model: ModelConfig) -> dict[str, object]:
        return {self.theirs: self.values[0]}

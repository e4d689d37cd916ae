"""The range and type of each key."""

from dataclasses import dataclass, is_dataclass, replace
from typing import Annotated, get_args

import pytest

from jaxpar.config import Config, bounds, load_config
from jaxpar.config.bounds import Bound, at_least
from jaxpar.config.mappings.experts import Clustering
from jaxpar.config.mappings.routers import ROUTERS
from jaxpar.config.parts import OPTIMIZERS, Optimizer
from jaxpar.config.reading.options import OPTIONS, record_of
from jaxpar.config.reading.sections import SECTIONS
from jaxpar.config.reading.typed import bound_of, field_types, type_names
from jaxpar.layout.checks.validate import validate
from tests.sentences import refused


def numeric_keys(record: type, prefix: str) -> dict[str, Bound | None]:
    """The keys of a section, and of the mappings in it, whose values are numbers, with their ranges."""
    keys: dict[str, Bound | None] = {}
    for key, annotation in field_types(record).items():
        if {"a number", "a whole number"} & {*type_names(annotation)}:
            keys[f"{prefix}.{key}"] = bound_of(annotation)
        for inner in get_args(annotation) or (annotation,):
            if is_dataclass(inner) and isinstance(inner, type):
                keys |= numeric_keys(inner, f"{prefix}.{key}")
    return keys


def ranges() -> dict[str, Bound | None]:
    """Every numeric key, of the mappings that another key chooses by the name of the choice, with its range."""
    mappings = [(f"model.experts.router_options of {name}", options) for name, options in ROUTERS.items()]
    mappings += [(f"{OPTIONS} of {name}", record_of(name)) for name in OPTIMIZERS]
    mappings += [("model.experts.clusters", Clustering), *SECTIONS.items()]
    return {key: bound for prefix, record in mappings for key, bound in numeric_keys(record, prefix).items()}


def test_every_number_has_a_range_with_a_largest_value():
    assert len(ranges()) > 120
    for key, bound in ranges().items():
        assert bound is not None and bound.refusal(1e300) is not None, key


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("POSITIVE", (5e-324, 1e30), (0,)), ("SHARE", (0, 1), (-1e-9, 1 + 1e-9)),
        ("SHARE_ABOVE_0", (1e-9, 1), (0, 1 + 1e-9)), ("BELOW_ONE", (0, 1 - 1e-9), (-1e-9, 1)),
        ("BELOW_HALF", (0, 0.5 - 1e-9), (-1e-9, 0.5)), ("ABOVE_ONE", (1 + 1e-9, 1e30), (1,)),
        ("BETWEEN", (1e-9, 1 - 1e-9), (0, 1)), ("SEED", (0, 2**32 - 1), (-1, 2**32)),
        ("AXIS", (1, -1, 2**20), (0, -2, 2**20 + 1)),
    ],
)  # fmt: skip
def test_a_range_has_the_ends_that_it_names(name: str, inside: tuple[float, ...], outside: tuple[float, ...]):
    refusal = getattr(bounds, name).refusal
    assert {value: refusal(value) for value in inside if refusal(value)} == {}
    assert all(refusal(value) for value in outside)


@dataclass(frozen=True)
class Options:
    """Options of an optimizer outside the package; AdamW and Muon have options of these names in other ranges."""

    beta1: float = 2.0
    momentum: Annotated[float, at_least(3)] = 3.0


def test_an_option_of_an_optimizer_from_outside_has_its_own_range(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(
        OPTIMIZERS, "outside", Optimizer("jaxpar.optim.adamw:adamw", "tests.config.test_ranges:Options")
    )
    validate(load_config(None, ["optimizer.name=outside", "optimizer.options.beta1=5"]))
    with refused("optimizer.options.momentum: must be at least 3, got 2.5"):
        validate(load_config(None, ["optimizer.name=outside", "optimizer.options.momentum=2.5"]))


def test_a_configuration_built_in_python_is_checked_for_types_too():
    config = Config()
    with refused("model.layers", "a whole number", "'four'"):
        validate(replace(config, model=replace(config.model, layers="four")))  # pyright: ignore[reportArgumentType]

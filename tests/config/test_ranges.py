"""The range and type of each key, and products of keys that no machine holds."""

from dataclasses import dataclass, is_dataclass, replace
from typing import Annotated, get_args

import pytest

from jaxpar.config import Config, load_config
from jaxpar.config.bounds import Bound, at_least
from jaxpar.config.mappings.experts import Clustering
from jaxpar.config.mappings.routers import ROUTERS
from jaxpar.config.parts import OPTIMIZERS, Optimizer
from jaxpar.config.reading.options import OPTIONS, record_of
from jaxpar.config.reading.sections import SECTIONS
from jaxpar.config.reading.typed import bound_of, field_types, type_names
from jaxpar.layout.checks.validate import validate
from tests.sentences import refusals, refused


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


@refusals(r"""
    run.steps=0 => run.steps: | at least 1 | got 0
    model.dropout=1 => model.dropout: | from 0 to below 1 | got 1.0
    run.steps=2147483648 => run.steps: | at most 2^31 - 1 | got 2147483648
    run.steps=1000000000000000000000000000000 => run.steps: | at most 64 bits | got 1000000000000000000000000000000
    model.z_loss=1e300 => model.z_loss: | at most 1e+30 | got 1e+300
    parallel.tensor=0 => parallel.tensor: | at least 1, or -1 for what remains | got 0
    memory.remat=ful => memory.remat: | none, full, selective, gemm_last, auto, a mapping or a list | got 'ful' | full?
    model.kinds.local.window=128 => model.kinds.local.window: no such key | model.kinds={local: {window: ...}}
    memory.remat.query=save => memory.remat.query: no such key | memory.remat={query: ...}
    model.layers.first=3 => model.layers.first: no such key | layers?
    model.kinds={1: {}} => model.kinds: | names of its entries that are text | got 1
    model.kinds={global: } => model.kinds.global: | a mapping | got null | {}?
    model.pattern=[a, b] => model.pattern: | a mapping or null | got [a, b] | {unit: [a, b]}?
    run.name=a/b => run.name: | name of one folder | got 'a/b' | run.dir
    run.name=.. => run.name: | name of one folder | got '..' | run.dir
    run.wandb=team/project => run.wandb: | name of a project, at most 128 letters and none of /\#?%: |
        got 'team/project'
    run.profile=15 => run.profile: | first:last, for example 10:15 | got '15'
    run.profile=15:10 => run.profile: | first:last, for example 10:15 | got '15:10'
    run.profile=0:3 => run.profile: | first:last, for example 10:15 | got '0:3'
    run.profile=5000:5001 => run.profile: 5000:5001 | run.steps (1000)
    data.source=tokens => data.path: null | data.source: tokens | path of a token folder or a file of tokens
    data.path=train.npy => data.path: 'train.npy' | data.source is stdlib | data.source: tokens | or null
    model.layers=10000 | model.embed=16777216 | model.mlp=16777216 =>
        model: layers 10000, embed 16777216, mlp 16777216, heads 8, vocab None | 2e+19 parameters | at most 1e+15
    data.batch_size=16777216 | data.sequence_length=131072 =>
        data.batch_size x sequence_length x (1 + prefetch): 16777216 x 131072 x 3 tokens | at most 2^36
    parallel.fsdp=1048576 | parallel.tensor=8 => parallel: the mesh (fsdp 1048576 x tensor 8) | 8388608 devices |
        at most 2^20
    model.vocab=2147483647 => model.vocab: 2147483647 | 2147483648 | model.vocab_multiple (128) | at most 2^31 - 1
""")
def test_a_value_out_of_range_or_beyond_any_machine_is_one_sentence(overrides, parts):
    with refused(*parts):
        validate(load_config(None, overrides))


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

"""A configuration survives the way through plain values, and two of them can be compared."""

import json
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from jaxpar.config import (
    Config,
    UserError,
    config_difference,
    config_from_dict,
    config_to_dict,
    config_to_yaml,
    load_config,
)
from jaxpar.config.bounds import Bound
from jaxpar.config.mappings.overlap import OFF, OverlapConfig
from jaxpar.config.parts import MembersOf
from jaxpar.config.presets import PRESETS
from jaxpar.config.reading.sections import SECTIONS
from jaxpar.config.reading.typed import beside_type, field_types, plain_type
from jaxpar.layout.checks.validate import validate
from tests.sentences import refused

_PLAIN: dict[Any, st.SearchStrategy] = {
    int: st.integers(1, 64) | st.integers(-(10**12), 10**12),
    float: st.floats(0, 1) | st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(max_size=8),
    type(None): st.none(),
    dict[str, float]: st.dictionaries(
        st.text(max_size=8), st.floats(allow_nan=False, allow_infinity=False), max_size=3
    ),
}


def _values(section: str, key: str, annotation: Any) -> st.SearchStrategy:
    if (section, key) == ("model", "preset"):
        return st.none() | st.sampled_from(sorted(PRESETS))
    if (section, key) == ("parallel", "stage_layers"):
        return st.none() | st.lists(_PLAIN[int], max_size=8).map(tuple)
    if (section, key) == ("model", "kinds"):
        own = st.dictionaries(st.text(max_size=8), st.none() | st.booleans() | _PLAIN[int] | _PLAIN[float], max_size=2)
        return st.dictionaries(st.text(max_size=8), own, max_size=2)
    if (section, key) == ("memory", "remat"):
        named = st.dictionaries(st.text(max_size=8), st.text(max_size=8) | _PLAIN[int], max_size=3)
        return st.sampled_from(["none", "full", "auto"]) | named | st.lists(named, max_size=3).map(tuple)
    if (section, key) == ("model", "low_rank"):
        return st.dictionaries(st.text(max_size=8), _PLAIN[int], max_size=3)
    if (section, key) == ("optimizer", "options"):
        return st.fixed_dictionaries({}, optional={"beta1": st.floats(0, 0.999), "epsilon": st.floats(1e-12, 1)})
    if get_origin(annotation) in (Union, UnionType):
        return st.one_of([_values(section, key, member) for member in get_args(annotation)])
    if get_origin(annotation) is tuple:
        return st.lists(_values(section, key, get_args(annotation)[0]), max_size=4).map(tuple)
    beside, annotation = beside_type(annotation), plain_type(annotation)
    if isinstance(beside, Bound):
        near = annotation(next(number for number in (1, 0.25, 2, 128, 1000) if beside.refusal(number) is None))
        return _PLAIN[annotation].map(lambda number: near if beside.refusal(number) else number)
    if beside is not None:
        return st.sampled_from(sorted(beside))
    if is_dataclass(annotation):
        return _records(key, annotation)
    return _PLAIN[annotation] if annotation in _PLAIN else st.from_type(annotation)


def _records(section: str, record: Any) -> st.SearchStrategy:
    """Records, whose mappings of members that another field decides have at least the members without a default."""
    decided = {key: beside_type(kind) for key, kind in field_types(record).items() if key != "options"}
    decided = {key: beside for key, beside in decided.items() if isinstance(beside, MembersOf)}
    values = {key: _values(section, key, kind) for key, kind in field_types(record).items() if key not in decided}
    required = lambda values: {key: _required(beside.record(values)) for key, beside in decided.items()}
    return st.fixed_dictionaries(values).flatmap(lambda values: st.builds(record, **_just(values), **required(values)))


def _just(values: dict[str, Any]) -> dict[str, st.SearchStrategy]:
    return {key: st.just(value) for key, value in values.items()}


def _required(record: Any) -> st.SearchStrategy:
    """The members of a record that have no default."""
    if record is None:
        return st.just({})
    without = {field.name for field in fields(record) if field.default is MISSING and field.default_factory is MISSING}
    types = {key: kind for key, kind in field_types(record).items() if key in without}
    return st.fixed_dictionaries({key: _values("", key, kind) for key, kind in types.items()})


CONFIGS = st.builds(Config, **{section: _records(section, record) for section, record in SECTIONS.items()})


@given(config=CONFIGS)
@settings(max_examples=25, deadline=None, phases=[Phase.generate])
def test_any_configuration_survives_json_and_yaml(config, tmp_path_factory):
    assert config_from_dict(json.loads(json.dumps(config_to_dict(config)))) == config
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(config_to_yaml(config).encode())
    assert load_config(path) == config


def test_what_is_absent_takes_the_preset_or_the_default():
    assert config_from_dict({"model": {"preset": "gpt2-124m"}}).model == PRESETS["gpt2-124m"]
    assert config_from_dict({}) == Config()


@pytest.mark.parametrize(
    "plain", [{"run": {"stepz": 1}}, {"runn": {}}, {"run": 3}, {"run": {"steps": "1"}}, {"model": {"rope_base": 1e4}}]
)
def test_plain_values_are_checked(plain):
    with pytest.raises(UserError):
        config_from_dict(plain)


def test_the_difference_names_each_key_with_both_values():
    old = load_config(None, ["run.seed=1"])
    new = load_config(None, ["run.seed=2", "model.kv_heads=4", "model.tied=true", "model.rope.base=5"])
    assert set(config_difference(old, new)) == {
        "run.seed: 1 -> 2", "model.kv_heads: null -> 4", "model.tied: false -> true", "model.rope.base: 10000.0 -> 5.0",
    }  # fmt: skip
    assert config_difference(old, old) == []


def test_the_difference_spells_mappings_as_yaml_does():
    old = load_config(None, ["data.sources={a/b: 1, c: 0.5}"])
    new = load_config(None, ["data.sources={a/b: 1}"])
    assert config_difference(old, new) == ["data.sources: {a/b: 1.0, c: 0.5} -> {a/b: 1.0}"]


def test_overlap_is_a_word_or_a_mapping_of_options():
    overlap = lambda *asked: load_config(None, [f"parallel.overlap{one}" for one in asked]).parallel.overlap
    assert overlap("=off") == OFF and overlap("=off", "=auto") == overlap() == OverlapConfig()
    assert overlap("={layer_unroll: 2}") == overlap(".layer_unroll=2") == OverlapConfig(layer_unroll=2)
    validate(load_config(None, ["parallel.overlap=off"]))
    for written, *parts in (
        ("parallel.overlap=of", "parallel.overlap", "auto or off", "'of'"),
        ("parallel.overlap={layer_unrol: 2}", "parallel.overlap", "did you mean layer_unroll"),
        ("parallel.layer_unroll=2", "parallel.layer_unroll", "did you mean parallel.overlap.layer_unroll"),
        ("parallel.tensor_overlap=ring", "parallel.tensor_overlap", "did you mean parallel.overlap.tensor?"),
    ):
        with refused(*parts):
            load_config(None, [written])

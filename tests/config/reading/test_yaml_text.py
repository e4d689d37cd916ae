"""Scalars are YAML 1.2's, and what is not a plain document of sections is refused with its line."""

import math

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxpar.config.reading.yaml_text import parse_document, parse_value, to_yaml
from tests.sentences import refused


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001), ("1E5", 100000.0), (".5", 0.5), ("-2.", -2.0), ("12", 12), ("1_000_000", 1000000), ("007", 7),
        ("10:15", "10:15"), ("on", "on"), ("no", "no"), ("none", "none"), ("2026-01-01", "2026-01-01"), ("true", True),
        ("null", None), ("~", None), ("", None), ("'1e-3'", "1e-3"), ("[1, 1e-3, a]", [1, 0.001, "a"]),
    ],
)  # fmt: skip
def test_a_scalar_is_read_by_the_rules_of_yaml_1_2(text, value):
    read = parse_value(text)
    assert read == value and type(read) is type(value)


@given(st.text(max_size=12) | st.from_regex(r"[-+0-9.eE:_]{1,8}", fullmatch=True))
@example("a\x85b\u2028")
@settings(max_examples=200, deadline=None)
def test_text_survives_both_this_reader_and_a_yaml_1_1_reader(text):
    written = to_yaml({"run": {"name": text}})
    assert parse_document(written, "a.yaml")["run"].value["name"].value == text
    assert yaml.safe_load(written) == {"run": {"name": text}}


@given(st.floats(allow_nan=False, allow_infinity=False))
@settings(max_examples=100, deadline=None)
def test_a_number_survives_to_the_last_bit(number):
    read = parse_document(to_yaml({"a": {"b": number}}), "a.yaml")["a"].value["b"].value
    assert read == number and math.copysign(1, read) == math.copysign(1, number)


def test_a_name_that_appears_twice_in_a_mapping_of_a_key_is_refused():
    assert parse_value("{a: 1, b: 2}") == {"a": 1, "b": 2}
    with refused("'{a: 1, a: 2}'", "twice"):
        parse_value("{a: 1, a: 2}")
    with refused("x.yaml:3:", "twice"):
        parse_document("data:\n  path: a\n  sources: {a: 1, a: 2}\n", "x.yaml")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("- a\n- b", "a.yaml:1: expected a mapping of sections, got a list"),
        ("5", "a.yaml:1: expected a mapping of sections, got '5'"),
        ("run:\n  name: [a", "a.yaml:2: not valid YAML"),
        ("run:\n  steps: 1\n  name: b\n  steps: 2", "a.yaml:4: steps appears twice, first on line 2"),
        ("run: {}\nmodel: {}\nrun: {}", "a.yaml:3: run appears twice, first on line 1"),
        ("run: 1\n---\nrun: 2", "a.yaml:2: not valid YAML"),
        ("\n[a]: 1", "a.yaml:2: expected a name before the colon, got a sequence"),
        ("run:\n  name: !!python/name:os.system x", "a.yaml:2: not valid YAML (tags"),
        ("run:\n  name: *nothing", "a.yaml:2: not valid YAML"),
        ("run: &a {name: *a}", "a.yaml:1: not valid YAML"),
        ("run: &r\n  name: *r", "a.yaml:2: not valid YAML"),
        ("run:\n  name: \x00", "a.yaml:2: not valid YAML"),
        ("run:\n  name: " + "[" * 5000, "a.yaml:2: not valid YAML (nested more than 20 deep)"),
    ],
)
def test_a_bad_document_is_one_sentence_with_its_line(text, sentence):
    with refused(sentence) as caught:
        parse_document(text, "a.yaml")
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize("text", ["", "# only a comment\n", "null"])
def test_an_empty_document_has_no_sections(text):
    assert parse_document(text, "a.yaml") == {}

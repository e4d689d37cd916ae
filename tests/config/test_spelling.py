"""A user's text stands in messages without control characters, and no longer than a reader wants it."""

from pathlib import Path

import pytest

from jaxpar.config import UserError, load_config
from jaxpar.config.spelling import cut, printable, quoted
from jaxpar.config.validate import validate

ESCAPES = "\x1b[2J\x07\x9b31m\u202e\ud800"


def test_a_long_text_loses_its_middle():
    assert cut("a" * 300) == "a" * 300
    assert len(cut("a" * 200 + "b" * 200)) == 300
    assert cut("a" * 200 + "b" * 200).startswith("aaa") and cut("a" * 200 + "b" * 200).endswith("bbb")
    assert quoted("x" * 100, 20) == "'xxxxxxxxxx...xxxxx'"


def test_control_characters_are_written_as_escapes():
    assert printable("plain, é") == "plain, é" and printable("two\nlines") == r"two\nlines"
    assert str(UserError("one\nline", "another")) == "one\\nline\nanother"
    assert printable("a\x1b[2Jb\t\u2028") == r"a\x1b[2Jb\t\u2028"
    assert str(UserError("a\x1bb")) == r"a\x1bb"


@pytest.mark.parametrize(
    "overrides",
    [
        [f"model.{ESCAPES}=1"], [f"{ESCAPES}.x=1"], [ESCAPES], ["model." + "x" * 100_000 + "=1"], ["x" * 100_000],
        ["model.norm=" + "x" * 100_000], ['model.norm="\\e[2J"'], ['model.pattern=["\\e[2J"]'],
        ["model.pattern=[" + "x" * 100_000 + "]"], ["model.kinds." + "x" * 100_000 + ".window=1"],
        [f"model.kinds.{ESCAPES}.window=1"], ["model.preset=" + "x" * 100_000],
        ["memory.remat={" + "x" * 100_000 + ": [1]}"], ["data.path=" + "x" * 100_000], ["run.profile=" + "x" * 100_000],
        ["data.sources={" + "x" * 100_000 + ": -1}", "data.source=tokens"], ["model.layers=[" + "1, " * 2_000 + "]"],
    ],
)  # fmt: skip
def test_names_and_values_of_overrides_are_shown_cleaned_and_cut(overrides: list[str]):
    with pytest.raises(UserError) as refusal:
        validate(load_config(None, overrides))
    assert str(refusal.value).isprintable()
    assert 20 < len(str(refusal.value)) < 1000


@pytest.mark.parametrize("name", [ESCAPES[:-1], "x" * 250, "a\nb"])
def test_the_name_of_a_file_is_shown_cleaned(tmp_path: Path, name: str):
    with pytest.raises(UserError) as refusal:
        load_config(tmp_path / f"{name}.yaml")
    assert str(refusal.value).isprintable()

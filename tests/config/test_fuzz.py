"""Seven thousand broken configurations: each loads and resolves, or is refused in one sentence. Never a traceback.

Three thousand indexes of token folders are broken in `tests/data/tokens/test_token_index.py`.
"""

import json
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxpar.config import UserError, config_to_yaml, load_config, virtual_devices_needed
from jaxpar.config.reading.sections import SECTIONS
from jaxpar.config.reading.typed import field_types, type_names
from jaxpar.config.reading.yaml_text import parse_document, parse_value
from jaxpar.layers.counting import parameter_count
from jaxpar.layout.checks.validate import validate
from jaxpar.layout.make_plan import make_plan, resolve_config, with_vocab

TEXTS, DRAWN = 2500, 4500
"""Cases: texts with letters changed, and documents of drawn keys and values."""

FILES = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))

PIECES = (
    "{", "}", "[", "]", "[" * 400, "{a: " * 50, ":", ": ", "- ", "\n", "\n\n  ", "\t", " ", "#", "'", '"', "|",
    ">-", "&a ", "*a", "<<: *a", "!!python/object/apply:os.system [true]", "!!binary x", "%YAML 1.1\n", "---\n",
    "...\n", "\0", "\x1b[2J", "\r", "\u2028", "\ufeff", "\ud83d\ude00", "?", "? a\n: b\n", "null", "~", "true",
    "0x1F", "1_000", "1e999", "-1e-999", ".inf", ".nan", "9" * 400, "-0", "0", "1.5", "run:",
    "model:\n  layers: 2\n", "parallel: {fsdp: -1}\n", "data: []\n",
)  # fmt: skip
"""Pieces that are put into a text."""

NUMBERS = (0, 1, -1, 2, 3, 4, 6, 7, 8, 12, 16, 31, 64, 100, 1000, 4096, 2**31, 2**63, 10**30, 10**299)
FRACTIONS = (0.0, 1.0, -1.0, 0.5, 0.1, 0.999, 1e-3, 1e-30, 1e-308, 5e-324, 1e30, 1.7e308, 2.0, 10.0, -0.0)
WORDS = ("", "x", "none", "adamw", "../up", "/", "a/b", "~", "null", "1f1b", "a b", "é", "[1, 2]", "x" * 300)
OTHERS = (None, True, False, [], [1], [1, 2], [0, -1, 3], ["a"], {}, {"a": 1}, {"a": "b"}, {"a": {"b": 0.5}})


def scrambled(text: str, draw: random.Random) -> bytes:
    """A text with two to five places changed: cut, doubled, swapped, or something put in; at times not UTF-8."""
    for _ in range(draw.randint(2, 5)):
        at = draw.randrange(len(text) + 1)
        lines = text.splitlines(keepends=True)
        match draw.randrange(7):
            case 0:
                text = text[:at] + text[at + draw.randint(1, 30) :]
            case 1 | 2:
                text = text[:at] + draw.choice(PIECES) + text[at:]
            case 3 if lines:
                lines.insert(draw.randrange(len(lines)), draw.choice(lines))
                text = "".join(lines)
            case 4 if lines:
                line = draw.randrange(len(lines))
                lines[line] = " " * draw.randrange(5) + lines[line].lstrip()
                text = "".join(lines)
            case 5:
                text = text[:at] + chr(draw.choice([draw.randrange(128), draw.randrange(0xD800)])) + text[at + 1 :]
            case 6:
                text = text[:at]
    raw = bytearray(text.encode(errors="surrogatepass"))
    if raw and draw.random() < 0.05:
        raw[draw.randrange(len(raw))] = draw.randrange(128, 256)
    return bytes(raw)


def value_for(annotation: Any, draw: random.Random) -> Any:
    """A value that a field may have by its type, or, one time in ten, one that it may not."""
    if draw.random() < 0.1:
        return draw.choice(OTHERS + NUMBERS + FRACTIONS + WORDS)
    name = draw.choice(type_names(annotation))
    pools: dict[str, Any] = {
        "a whole number": NUMBERS[:12] if draw.random() < 0.8 else NUMBERS, "a number": FRACTIONS,
        "true or false": (True, False), "text": WORDS, "null": (None,),
        "a list": [[draw.choice(NUMBERS[:9]) for _ in range(draw.randrange(5))]],
        "a mapping": [{}, {"runs/tokens": 0.5, "b": 1.0}, {"a": 0}, {"": -1}],
    }  # fmt: skip
    return draw.choice(pools.get(name, (name,)))


def drawn(draw: random.Random) -> dict[str, dict[str, Any]]:
    """A document with a few keys of the schema."""
    written: dict[str, dict[str, Any]] = {}
    for _ in range(draw.randint(1, 5)):
        section = draw.choice(list(SECTIONS))
        types = field_types(SECTIONS[section])
        key = draw.choice(list(types))
        written.setdefault(section, {})[key] = value_for(types[key], draw)
    return written


def use(file: Path, *, again: bool = False) -> None:
    """All that happens to a configuration before there is data; if `again`, also written and read again."""
    config = load_config(file)
    if again:
        file.write_text(config_to_yaml(config))
        assert load_config(file) == config
    validate(config)
    config = resolve_config(config, virtual_devices_needed(config.parallel))
    config = with_vocab(config, config.model.vocab or 256)
    parameter_count(config.model, padded=True)
    make_plan(config, jax.devices()[0])


def outcomes(cases: list[bytes], file: Path) -> Counter[str]:
    """How many were used and how many refused; anything but one sentence fails."""
    counted: Counter[str] = Counter()
    for number, content in enumerate(cases):
        file.write_bytes(content)
        try:
            use(file, again=number % 20 == 0)
            counted["used"] += 1
        except UserError as error:
            counted["refused"] += 1
            message = str(error)
            lines = message.split("\n")
            assert all(line.isprintable() and 10 < len(line) < 1500 for line in lines), (
                f"{message!r} for {content[:2000]!r}"
            )
        except Exception as error:
            raise AssertionError(f"{content[:2000]!r} shows a traceback") from error
    return counted


SHARES = pytest.mark.parametrize("share", [0.1, pytest.param(1.0, marks=pytest.mark.release)])


@SHARES
def test_no_text_whatsoever_shows_a_traceback(tmp_path: Path, share: float):
    draw, count = random.Random(20), int(share * TEXTS)
    texts = [path.read_text() for path in FILES]
    pieces = [text[: draw.randint(1, 600)] for text in texts for _ in range(20)]
    cases = [scrambled(draw.choice(pieces), draw) for _ in range(count)]
    counted = outcomes(cases, tmp_path / "run.yaml")
    assert counted["refused"] > count / 3 and counted["used"] > count / 50, counted


@SHARES
def test_no_keys_and_values_show_a_traceback(tmp_path: Path, share: float):
    draw, count = random.Random(21), int(share * DRAWN)
    cases = [repr_yaml(drawn(draw)) for _ in range(count)]
    counted = outcomes(cases, tmp_path / "run.yaml")
    assert counted["refused"] > count / 5 and counted["used"] > count / 50, counted


def repr_yaml(written: dict[str, dict[str, Any]]) -> bytes:
    """JSON is YAML, and says every value without a doubt; larger numbers than JSON has are left to the other test."""
    return "".join(f"{section}: {json.dumps(keys)}\n" for section, keys in written.items()).encode()


NAMES = [f"n{number}" for number in range(40)]

BOMBS = {
    "doubles": "n0: &n0 [x]\n" + "".join(f"{n}: &{n} [*{p}, *{p}]\n" for p, n in pairwise(NAMES)),
    "a billion laughs": "a: &a [x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"{n}: &{n} [{', '.join([f'*{p}'] * 9)}]\n" for p, n in pairwise("abcdefghi")),
    "one value a thousand times": f"a: &a [{', '.join(['x'] * 1000)}]\nb: [{', '.join(['*a'] * 1000)}]\n",
    "values of mappings": "n0: &n0 {k: x}\n" + "".join(f"{n}: &{n} {{a: *{p}, b: *{p}}}\n" for p, n in pairwise(NAMES)),
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS.keys())
def test_aliases_that_would_fill_the_memory_are_counted_and_not_written_out(text: str):
    for read in (lambda: parse_document(text, "run.yaml"), lambda: parse_value(text)):
        with pytest.raises(UserError, match=r"100000 values|20 deep") as refusal:
            read()
        assert len(str(refusal.value)) < 1500


def test_an_alias_stands_for_its_value():
    document = parse_document("data:\n  a: &a [1, 2]\n  b: *a\n", "run.yaml")
    assert document["data"].value["b"].value == [1, 2]

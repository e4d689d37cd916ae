"""An index is read as it was written, or refused in one sentence: whatever was done to it."""

import copy
import json
import random
import shutil

import pytest

from jaxpar.config.errors import UserError
from jaxpar.data.tokens.digests import digest
from jaxpar.data.tokens.token_folder import open_token_folder
from jaxpar.data.tokens.token_index import INDEX, decode, encode
from tests.data.folders import contents, prepared, texts
from tests.sentences import refused

CASES = 3000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("index") / "tokens", texts(60)).path


def sealed(plain):
    """The text of an index with a digest that fits, whatever else is wrong with it."""
    plain = {key: value for key, value in plain.items() if key != "digest"}
    plain["digest"] = digest(json.dumps(plain, sort_keys=True).encode())
    return (json.dumps(plain, indent=1, sort_keys=True) + "\n").encode()


def test_an_index_comes_back_as_it_was_written(folder):
    raw = (folder / INDEX).read_bytes()
    index = decode(raw, INDEX)
    assert encode(index) == raw == sealed(json.loads(raw)) and decode(encode(index), INDEX) == index


VALUES = (
    None, True, False, 0, 1, -1, 2**31, 2**63, 10**30, 0.5, "", "x", "../x", "/etc/passwd", "a/b", "..", "a\nb",
    "index.json", "train-00000.npy", "tokenizer.json", "ä", "\ud800", "\0", "a" * 5000, [], [1], {}, {"a": {}},
    "uint16", "uint32", "int8",
)  # fmt: skip


def mutated(plain, draw):
    """A copy with one to three changes: a value replaced, a key renamed, dropped or added, two subtrees swapped."""
    plain = copy.deepcopy(plain)
    for _ in range(draw.randint(1, 3)):
        places = list(_places(plain))
        parent, key = draw.choice(places)
        match draw.randrange(6):
            case 0 | 1:
                parent[key] = draw.choice(VALUES)
            case 2:
                del parent[key]
            case 3:
                parent[str(draw.choice(VALUES))] = parent.pop(key)
            case 4:
                other, name = draw.choice(places)
                parent[key], other[name] = copy.deepcopy(other[name]), copy.deepcopy(parent[key])
            case 5:
                number = parent[key]
                parent[key] = number + draw.choice([-1, 1, 8, 1000]) if type(number) is int else draw.choice(VALUES)
    return plain


def _places(plain):
    for key, value in plain.items():
        yield plain, key
        if isinstance(value, dict):
            yield from _places(value)


def scrambled(raw, draw):
    """The text with bytes changed, cut out or put in."""
    raw = bytearray(raw)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(raw))
        match draw.randrange(4):
            case 0:
                raw[at] ^= 1 << draw.randrange(8)
            case 1:
                del raw[at : at + draw.randint(1, 50)]
            case 2:
                raw[at:at] = draw.choice([b"{", b"[" * 3000, b'"', b"\\u0000", b"1e999", b"NaN", b"\xff", b" "])
            case 3:
                raw = raw[: at + 1]
    return bytes(raw)


def test_no_index_whatsoever_shows_a_traceback(folder, tmp_path):
    target = tmp_path / "tokens"
    shutil.copytree(folder, target)
    draw = random.Random(7)
    raw = (folder / INDEX).read_bytes()
    plain = json.loads(raw)
    messages = []
    for case in range(CASES):
        changed = scrambled(raw, draw) if case % 4 == 0 else sealed(mutated(plain, draw))
        (target / INDEX).write_bytes(changed)
        try:
            open_token_folder(target, key="data.path")
        except UserError as error:
            messages.append(str(error))
    assert len(messages) > CASES * 0.9, "nearly every change matters"
    for sentence in messages:
        assert sentence.startswith(f"data.path='{target}': ")
        assert sentence.isprintable() and len(sentence) < 1000, sentence
    assert contents(target) | {INDEX: b""} == contents(folder) | {INDEX: b""}, "opening writes nothing"


@pytest.mark.parametrize(
    ("place", "value", "parts"),
    [
        ("format", "other", ("not the index of a token folder",)),
        ("version", 9, ("version 9", "versions 5, 6, 7, 8")),
        ("tokenizer.name", "../tokenizer.json", ("../tokenizer.json", "not the plain name of a file")),
        ("tokenizer.name", "/etc/hostname", ("/etc/hostname", "not the plain name of a file")),
        ("separator", 257, ("257", "a separator below the vocabulary")),
        ("vocab", 70000, ("70000", "a vocabulary that the type holds")),
        ("splits.train", {}, ("expected train", "at least one shard")),
        ("extra", 1, ("unknown key 'extra'",)),
    ],
)
def test_what_does_not_make_sense_is_named_even_when_its_digest_fits(folder, place, value, parts):
    plain = json.loads((folder / INDEX).read_bytes())
    section, _, key = place.rpartition(".")
    (plain[section] if section else plain)[key] = value
    with refused(*parts):
        decode(sealed(plain), INDEX)


def test_a_folder_of_an_earlier_release_is_refused_by_its_version(folder):
    plain = json.loads((folder / INDEX).read_bytes())
    plain["splits"]["heldout"] = plain["splits"].pop("validation")
    for version in (1, 2, 3, 4):
        with refused(f"version {version}", "earlier release", "versions 5, 6, 7, 8", "make the folder again"):
            decode(sealed(plain | {"version": version}), INDEX)

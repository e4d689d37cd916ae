"""Tokenizers that would take the memory or the time of a machine are refused in a sentence, before they are made."""

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from jaxpar.data.tokens.text_codec import TextCodec
from jaxpar.data.tokens.tokenizer_file import load_tokenizer
from tests.sentences import refused

WORDS = {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"}


def text_of(**parts: Any) -> str:
    """The smallest tokenizer, with other parts."""
    names = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    return json.dumps({"version": "1.0", "added_tokens": [], "model": WORDS} | dict.fromkeys(names) | parts)


def replace(old: str, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def added(content: str, number: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": number, "content": content} | flags


def charsmap(content: bytes) -> dict[str, Any]:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(content).decode()}


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": steps}


def regex(pattern: str, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": new}


def nested(key: str, kind: str, depth: int) -> str:
    steps = f'{{"type":"Sequence","{kind}":[' * depth + "]}" * depth
    return text_of(**{key: "@"}).replace('"@"', steps)


CTC = {"type": "CTC", "pad_token": "<p>", "word_delimiter_token": "", "cleanup": True}
BERT = {
    "type": "BertNormalizer", "clean_text": False, "handle_chinese_chars": True, "strip_accents": None,
    "lowercase": False,
}  # fmt: skip
LONG_MAP = bytes(4) + b"ab\0" + b"x" * 2000 + b"\0y\0"
WORD_PIECE = {
    "type": "WordPiece", "vocab": {"a": 0}, "unk_token": "a", "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 100,
}  # fmt: skip
BPE = {"type": "BPE", "vocab": {"a": 0}, "merges": []}
DOUBLED = [replace("a", "aa")] * 40
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
TEMPLATE = {
    "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "a", "type_id": 0}}] * 1000, "pair": [],
    "special_tokens": {"a": {"id": "a", "ids": [0] * 1000, "tokens": ["a"] * 1000}},
}  # fmt: skip
BOMBS: dict[str, tuple[str, tuple[str, ...]]] = {
    "brackets": ("[" * 100_000, ("nests too deep",)),
    "normalizers in normalizers": (nested("normalizer", "normalizers", 20_000), ("nests too deep",)),
    "normalizers in some": (nested("normalizer", "normalizers", 90), ("not a tokenizer file", "recursion limit")),
    "a list": ("[]", ("not a tokenizer file", "expected")),
    "a number of thousands of digits": (text_of(version="@").replace('"@"', "9" * 5000), ("thousands of digits",)),
    "a vocabulary of 10^9": (text_of(model=WORDS | {"vocab": {"a": 10**9, "[UNK]": 1}}),
        ("'a' has number 1000000000", "below 16777216")),
    "an added token of 2^32 - 1": (text_of(added_tokens=[added("<x>", 2**32 - 1)]),
        ("'<x>' has number 4294967295", "below 16777216")),
    "a token of megabytes": (text_of(added_tokens=[added("x" * 2**20, 2)]),
        ("1048576 letters", "expected at most 10000")),
    "a normalizer that doubles": (text_of(normalizer={"type": "Sequence", "normalizers": DOUBLED}),
        ("normalizer and pre_tokenizer", "1.1e+12 times", "at most 1000")),
    "a regular expression that finds nothing everywhere": (text_of(normalizer={"type": "Replace",
        "pattern": {"Regex": ""}, "content": "a" * 2000}), ("normalizer", "2001 times", "at most 1000")),
    "a beginning of megabytes": (text_of(normalizer={"type": "Prepend", "prepend": "a" * 2**20}),
        ("normalizer", "1.049e+06 times")),
    "bytes of bytes": (text_of(pre_tokenizer={"type": "Sequence", "pretokenizers": [BYTES] * 30}),
        ("pre_tokenizer", "1.074e+09 times")),
    "a map of characters to thousands": (text_of(normalizer=charsmap(LONG_MAP)), ("2000 times", "at most 1000")),
    "words of Wav2Vec2 without a delimiter": (text_of(decoder={"type": "Sequence", "decoders": [CTC] * 33}),
        ("decoder", "8.59e+09 times")),
    "spaces around Chinese letters, again and again": (text_of(normalizer=sequence(*[BERT] * 90)),
        ("normalizer and pre_tokenizer", "times as long")),
    "a regular expression that may find nothing": (text_of(normalizer=sequence(*[regex("a*", " ")] * 10)),
        ("normalizer", "1024 times")),
    "letters that grow and are composed again": (text_of(normalizer=sequence(*[replace("i", "İ"),
        {"type": "Lowercase"}] * 20)), ("normalizer", "times as long")),
    "thousands of steps": (text_of(pre_tokenizer={"type": "Sequence", "pretokenizers": [BYTES] * 1100}),
        ("1101 steps", "at most 100")),
    "hundreds of maps": (text_of(normalizer=sequence(*[charsmap(bytes(8))] * 260)), ("261 steps", "at most 100")),
    "a template of a list": (
        text_of(post_processor=TEMPLATE | {"single": [{"SpecialToken": {"id": [], "type_id": 0}}]}),
        ("not a tokenizer file", "expected"),
    ),
    "words of 10^9 letters": (text_of(model=WORD_PIECE | {"max_input_chars_per_word": 10**9}),
        ("max_input_chars_per_word is 1000000000", "at most 1000")),
    "a prefix of megabytes": (text_of(model=BPE | {"continuing_subword_prefix": "#" * 2**20}),
        ("continuing_subword_prefix is '###", "at most 10000")),
    "a suffix of megabytes": (text_of(model=BPE | {"end_of_word_suffix": "#" * 2**20}),
        ("end_of_word_suffix is '###", "at most 10000")),
    "a decoder that doubles": (text_of(decoder={"type": "Sequence", "decoders": DOUBLED}),
        ("decoder", "1.1e+12 times", "at most 1000")),
    "a template of millions": (text_of(post_processor=TEMPLATE),
        ("post_processor adds 1000000 tokens", "at most 1000")),
    "a map of characters of 4 GiB": (text_of(normalizer=charsmap(b"\xff" * 8)), ("precompiled_charsmap is damaged",)),
    "no map of characters": (text_of(normalizer={"type": "Precompiled", "precompiled_charsmap": "?"}),
        ("precompiled_charsmap is damaged",)),
    "merges of nothing": (text_of(model={"type": "BPE", "vocab": {"a": 0}, "merges": [["x", "y"]]}),
        ("not a tokenizer file", "`x`")),
    "an unknown token that is none": (text_of(model={"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 5}),
        ("not a tokenizer file", "UnkId")),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_hostile_tokenizer_is_refused_in_a_sentence(name: str, tmp_path: Path):
    text, parts = BOMBS[name]
    file = tmp_path / "tokenizer.json"
    file.write_text(text)
    with refused("--tokenizer", *parts):
        load_tokenizer(file, "--tokenizer")
    assert file.read_text() == text


SPACES = [
    regex(pattern, " ")
    for pattern in (
        r"\r\n", r"\n+", r"\t+", " {2,}", r"[\u2018\u2019]", r"[\u201c\u201d]", r"[\u2013\u2014]", r"\u00a0", "x",
    )
]  # fmt: skip
SUBSTITUTED = {
    "½": "1/2", "¼": "1/4", "¾": "3/4", "…": "...", "ﷺ": "صلى الله عليه وسلم", "€": " EUR ", "£": " GBP ",
    "&": " and ", "%": " percent ", "@": " at ",
}  # fmt: skip
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
NMT_NFKC = charsmap(bytes(8) + "صلى الله عليه وسلم\0".encode())
NORMALIZERS = {
    "Llama 2": sequence({"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")),
    "Gemma": replace(" ", "▁"),
    "T5": sequence(NMT_NFKC, {"type": "Strip", "strip_left": False, "strip_right": True}, regex(" {2,}", "▁")),
    "ALBERT": sequence(
        replace("``", '"'), replace("''", '"'), {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"},
        NMT_NFKC, regex(" {2,}", " "),
    ),
    "CLIP": sequence({"type": "NFC"}, regex(r"\s+", " "), {"type": "Lowercase"}),
    "BERT": BERT,
    "ten substitutions": sequence(*[replace(old, new) for old, new in SUBSTITUTED.items()]),
    "spaces alike": sequence(*SPACES, regex("y", " ")),
}  # fmt: skip
"""Patterns of published tokenizers, and others that make no text much longer."""


@pytest.mark.parametrize("name", NORMALIZERS)
def test_ordinary_normalizers_are_read(name: str, tmp_path: Path):
    file = tmp_path / "tokenizer.json"
    file.write_text(text_of(normalizer=NORMALIZERS[name], pre_tokenizer=METASPACE))
    assert load_tokenizer(file, "--tokenizer").normalizer is not None


def test_a_tokenizer_of_gigabytes_is_refused(tmp_path: Path):
    file = tmp_path / "tokenizer.json"
    file.write_text("{")
    os.truncate(file, 2**36)
    with refused("--tokenizer", "more than 134217728 bytes"):
        load_tokenizer(file, "--tokenizer")


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"model": WORDS | {"vocab": {"a": 0}}}, "Missing [UNK]"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "unk_token": "[UNK]"}}, "`[UNK]` not found"),
        ({"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": None}}, "`unk_id` is missing"),
        ({"normalizer": charsmap(bytes([8, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0]))}, "index out of bounds"),
    ],
)
def test_a_text_that_a_tokenizer_cannot_encode_is_one_sentence(parts: dict[str, Any], why: str, tmp_path: Path):
    file = tmp_path / "tokenizer.json"
    file.write_text(text_of(**parts))
    with refused(str(file), "gives up on a text", why, "expected"):
        TextCodec(file).encode("b")


def test_paddings_and_lengths_of_a_file_are_not_used(tmp_path: Path):
    """They are switched off before any text is encoded."""
    padding = {"strategy": {"Fixed": 10**12}, "pad_to_multiple_of": 10**9, "pad_id": 0, "pad_type_id": 0}
    padding |= {"direction": "Right", "pad_token": "a"}
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    file = tmp_path / "tokenizer.json"
    file.write_text(text_of(model=BPE, padding=padding, truncation=truncation))
    assert TextCodec(file).encode("aaa") == [0, 0, 0]

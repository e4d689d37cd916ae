"""Pieces have the tokens of the whole text, for each kind of tokenizer that may be cut; the others are not cut."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from jaxpar.data.prepare.output.pieces import Cuts, find_cuts
from jaxpar.data.tokens.tokenizer_file import prepared_for_text

GPT_2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
CL100K = (
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"""
    r"""|\s+(?!\S)|\s+"""
)
QWEN_2 = CL100K.replace("{1,3}", "")
O200K = (
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"""
    r"""|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"""
    r"""|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
TEXT = "the cat's hat, the  cat\n\nthat sat; 1234 at's\n\tit ate a hat\r\nthé ñandú\n//a b"
SAMPLE = [TEXT, "ab ab\nab a b c\n"] * 40


def bytes_after(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def bpe(pre_tokenizer, normalizer=None, added=()):
    tokenizer = Tokenizer(models.BPE(unk_token="?"))
    return trained(
        tokenizer, trainers.BpeTrainer(vocab_size=400, special_tokens=["?"]), pre_tokenizer, normalizer, added
    )


def trained(tokenizer, trainer, pre_tokenizer, normalizer=None, added=()):
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer.show_progress = False
    tokenizer.train_from_iterator(SAMPLE, trainer)
    tokenizer.add_tokens(list(added))
    return prepared_for_text(tokenizer)


def wordpiece():
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]"])
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    return trained(tokenizer, trainer, pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer())


def unigram(scheme):
    trainer = trainers.UnigramTrainer(vocab_size=80, unk_token="<unk>", special_tokens=["<unk>"])
    squeeze = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    return trained(Tokenizer(models.Unigram()), trainer, pre_tokenizers.Metaspace(prepend_scheme=scheme), squeeze)


BOTH, SPACES, NONE = Cuts(True, True), Cuts(True, False), Cuts(False, False)
P, N = pre_tokenizers, normalizers
KINDS = {
    "GPT-2": (lambda: bpe(P.ByteLevel(add_prefix_space=False)), BOTH),
    "RoBERTa": (lambda: bpe(P.ByteLevel(add_prefix_space=True)), SPACES),
    "GPT-2's pattern": (lambda: bpe(bytes_after(GPT_2)), BOTH),
    "Llama 3": (lambda: bpe(bytes_after(CL100K)), BOTH),
    "Qwen 2": (lambda: bpe(bytes_after(QWEN_2), N.NFC()), BOTH),
    "o200k": (lambda: bpe(bytes_after(O200K)), BOTH),
    "StarCoder": (lambda: bpe(P.Sequence([P.Digits(True), P.ByteLevel(add_prefix_space=False)])), BOTH),
    "spaces added": (lambda: bpe(P.ByteLevel(add_prefix_space=False), added=["  ", "   ", "\n\n"]), BOTH),
    "BERT": (wordpiece, BOTH),
    "Unigram": (lambda: unigram("always"), SPACES),
    "Unigram, first": (lambda: unigram("first"), SPACES),
    "Unigram, never": (lambda: unigram("never"), SPACES),
    "Metaspace": (lambda: bpe(P.Metaspace()), SPACES),
    "whitespace": (lambda: bpe(P.Whitespace(), N.Sequence([N.NFD(), N.StripAccents(), N.Lowercase()])), BOTH),
    "words": (lambda: bpe(P.WhitespaceSplit()), BOTH),
}
NOT_CUT = {
    "no pre-tokenizer": lambda: bpe(None),
    "Llama 2": lambda: bpe(None, N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")])),
    "Metaspace in one": lambda: bpe(P.Metaspace(split=False)),
    "another pattern": lambda: bpe(bytes_after(r"\w+ \w+|\s+")),
    "a part of a pattern": lambda: bpe(bytes_after(r"\p{N}|\s+")),
    "scripts": lambda: bpe(P.Sequence([P.UnicodeScripts(), P.ByteLevel()])),
    "stripped": lambda: bpe(P.Metaspace(), N.Strip()),
    "words joined": lambda: bpe(P.ByteLevel(add_prefix_space=False), added=["a b"]),
    "taking spaces": lambda: bpe(P.ByteLevel(add_prefix_space=False), added=[AddedToken("hat", rstrip=True)]),
}


@pytest.fixture(scope="module")
def made():
    return {name: make() for name, (make, _) in KINDS.items()}


WORDS = st.sampled_from([
    "a", "the cat", "hat", " ", "  ", "\n", "\r\n", "\t", "'s", "1", "234", "!", "//", "é", "\u0301", "猫", "\u2028",
    "A b", "x y z", "a\nb", "B\n9", "▁", "\u3000", "🐈", "Ġ", "'ll", ".\na", "\n\nq",
])  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=120, deadline=None)
@given(parts=st.lists(WORDS, max_size=40), longest=st.integers(1, 9))
def test_pieces_have_the_tokens_of_the_whole(made, kind, parts, longest):
    tokenizer, text = made[kind], "".join(parts)
    cuts = find_cuts(tokenizer)
    found = cuts._replace(longest=longest).pieces(text)
    assert found is not None and "".join(found) == text
    encoded = [token for piece in found for token in tokenizer.encode(piece, add_special_tokens=False).ids]
    assert encoded == tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", KINDS)
def test_the_kinds_that_are_supported_are_cut(made, kind):
    cuts = find_cuts(made[kind])
    assert cuts == KINDS[kind][1]
    cuts = cuts._replace(longest=12)
    found = cuts.pieces("the cat sat on the mat and so on and so on and on")
    assert found is not None and max(map(len, found)) <= 12
    lines = cuts.pieces("\n".join("0123456789"))
    assert lines is not None and (len(lines) > 1) == cuts.lines


@pytest.mark.parametrize("kind", NOT_CUT)
def test_other_tokenizers_are_not_cut(kind):
    assert find_cuts(NOT_CUT[kind]()) == NONE
    short = NONE._replace(longest=10, largest=30)
    assert short.pieces("a b " * 7) == ["a b " * 7] and short.pieces("a b " * 8) is None


def test_an_added_token_that_takes_the_line_end_before_it_forbids_to_cut_there():
    tokenizer = bpe(P.ByteLevel(add_prefix_space=False), added=[AddedToken("def", lstrip=True)])
    assert find_cuts(tokenizer) == SPACES
    assert not json.loads(tokenizer.to_str())["added_tokens"][-1]["special"]


def test_a_text_without_a_cut_may_be_encoded_whole_up_to_a_limit():
    short = BOTH._replace(longest=10, largest=30)
    assert short.pieces("x" * 30) == ["x" * 30] and short.pieces("x" * 31) is None
    assert short.pieces("x" * 25 + " y z") == ["x" * 25, " y z"]
    assert short.pieces("x y" + "z" * 20) == ["x", " y" + "z" * 20] and short.pieces("") == [""]

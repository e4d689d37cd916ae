"""`data.source: prompts`: prompts as tokens, in an order that the seed decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from jaxtyping import Int

from jaxpar.config.errors import UserError
from jaxpar.config.schema import DataConfig
from jaxpar.config.spelling import did_you_mean, quoted
from jaxpar.data.chat.encoding import ChatEncoder
from jaxpar.data.chat.messages import Message, Unusable
from jaxpar.data.chat.template import named_tokens, template_beside
from jaxpar.data.opened import Data
from jaxpar.data.packing import Row
from jaxpar.data.stdlib import END_OF_DOCUMENT, VOCAB, decode, encode
from jaxpar.data.stream import TokenStream
from jaxpar.data.tokens.text_codec import TextCodec
from jaxpar.data.tokens.tokenizer_file import END_NAMES, tokenizer_path, vocabulary_size
from jaxpar.pages.units import plural
from jaxpar.remote.cache import local_path
from jaxpar.rl.records import Record, read_records
from jaxpar.rl.tasks import TASKS

UNKNOWN = "\ufffd"
"""Text of a token that stands for nothing: a model's vocabulary may be larger than an alphabet."""


@dataclass(frozen=True)
class Prompt:
    """A prompt and its columns."""

    tokens: tuple[int, ...]
    record: Record


class PromptRows:
    """Prompts in the order of a seed; their answers make the rows of a step."""

    shuffle = None

    def __init__(self, prompts: Sequence[Prompt], sequence_length: int, seed: int, rewards: tuple[str, ...]):
        self.prompts, self.sequence_length, self._seed = prompts, sequence_length, seed
        self.rewards = rewards
        """Names of the task's rewards."""

    @property
    def stream(self) -> TokenStream:
        """All prompts, one after another."""
        lengths = np.array([len(one.tokens) for one in self.prompts])
        tokens = np.concatenate([np.array(one.tokens, np.uint32) for one in self.prompts])
        return TokenStream(tokens=tokens, starts=np.cumsum(lengths) - lengths)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return max(len(one.tokens) for one in self.prompts)

    def taken(self, first: int, count: int) -> list[Prompt]:
        """Prompts `first` and after: each once in an epoch, whose order depends on the seed and the epoch's number."""
        size = len(self.prompts)
        return [self.prompts[self._order(at // size)[at % size]] for at in range(first, first + count)]

    def shuffled(self, version: int) -> PromptRows:
        """The same: there is one order."""
        return self

    def row(self, example: int) -> Row:
        """No row: answers make them."""
        raise AssertionError("rows of prompts are made from answers")

    def epochs(self, examples: int) -> dict[str, float]:
        """Epochs once so many prompts were used."""
        return {"prompts": examples / len(self.prompts)}

    def _order(self, epoch: int) -> Int[np.ndarray, " prompts"]:
        known = self._known  # a thread that draws ahead asks, too
        if known[0] != epoch:
            self._known = known = epoch, np.random.default_rng([self._seed, epoch]).permutation(len(self.prompts))
        return known[1]

    _known: tuple[int, Int[np.ndarray, " prompts"]] = (-1, np.zeros(0, np.int64))


class Characters:
    """A token for each character of an alphabet, and one behind them that ends a text."""

    def __init__(self, alphabet: str):
        self.alphabet, self.end, self.vocab = alphabet, len(alphabet), len(alphabet) + 1

    def encode_start(self, text: str, *, special_tokens: bool = False) -> list[int]:
        """The tokens of a text, which nothing comes before. Raises `UserError` for another character."""
        del special_tokens
        for character in text:
            if character not in self.alphabet:
                raise UserError(f"text {quoted(text)}: {quoted(character)} is none of {quoted(self.alphabet)}")
        return [self.alphabet.index(character) for character in text]

    encode = encode_start

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """The text of some tokens, without ends."""
        shown = lambda token: self.alphabet[token] if token < self.end else UNKNOWN
        return "".join(shown(int(token)) for token in tokens if token != self.end)


class Bytes:
    """A token for each byte, and one behind them that ends a text, as `data.source: stdlib` has them."""

    vocab, end = VOCAB, END_OF_DOCUMENT
    encode_start, encode, decode = staticmethod(encode), staticmethod(encode), staticmethod(decode)


class Tokenizer:
    """The tokenizer of a model.

    Raises `UserError` where there is none, or no token that ends an answer is known.
    """

    def __init__(self, path: str, end_token: str | None):
        label = f"data.tokenizer: {quoted(path)}"
        file = tokenizer_path(local_path(path, "data.tokenizer"))
        codec, self._folder = TextCodec(file, label), file.parent
        self.encode_start = partial(codec.encode_start, special_tokens=True)  # a prompt may spell out a chat's template
        self.encode = codec.encode
        self.decode, self.vocab, self._codec = codec.decode, vocabulary_size(codec.tokenizer), codec
        names, named = codec.special, (named_tokens(file.parent).get("eos_token", ""), *END_NAMES)
        wanted = [end_token] if end_token is not None else [name for name in named if name in names]
        if not wanted or wanted[0] not in names:
            near = did_you_mean(str(end_token), names) or f"; it has {', '.join(list(names)[:20]) or 'none'}"
            raise UserError(f"data.end_token: {end_token or 'null'} is no special token of {quoted(path)}{near}")
        self.end = names[wanted[0]]

    @cached_property
    def chat(self) -> ChatEncoder:
        """The chat template beside the tokenizer. Raises `UserError` where there is none, or it cannot be used."""
        template = template_beside(self._folder)
        if template is None:
            raise UserError(
                f"data.tokenizer: there is no chat template in {quoted(str(self._folder))}, and prompts are messages; "
                "expected chat_template.jinja there, or prompts that are texts"
            )
        return ChatEncoder(template, self._codec.tokenizer)


type Codec = Bytes | Characters | Tokenizer


def codec_of(config: DataConfig) -> Codec:
    """The tokens of prompts and answers. Raises `UserError` where `data.tokenizer` is none."""
    if config.tokenizer is not None:
        return Tokenizer(config.tokenizer, config.end_token)
    alphabet = TASKS[config.path].alphabet if config.path in TASKS else None
    return Bytes() if alphabet is None else Characters(alphabet)


def check_vocab(vocab: int | None, needed: int) -> None:
    """Raise `UserError` for a `model.vocab` that does not have all tokens of prompts."""
    if vocab is not None and vocab < needed:
        raise UserError(f"model.vocab: {vocab} is too small for the prompts; expected at least {needed}, or null")


def encoded_prompt(codec: Codec, prompt: str | list[Message]) -> Sequence[int]:
    """The tokens of a prompt: a text, or messages, behind which the assistant's turn begins. Raises `UserError`."""
    if isinstance(prompt, str):
        return codec.encode_start(prompt)
    if not isinstance(codec, Tokenizer):
        raise UserError(
            "data.tokenizer: null, and prompts are messages, which a chat template renders; expected a tokenizer with "
            "one, or prompts that are texts"
        )
    try:
        codec.chat.check(prompt)
        return codec.chat.prompt(prompt)
    except Unusable as error:
        raise UserError(f"data.path: a prompt of messages cannot be used ({error})") from None


def open_prompts(config: DataConfig, vocab: int | None, seed: int) -> Data:
    """The data of `data.source: prompts`; see `open_data`."""
    assert config.path is not None, "the path is checked"
    records, codec = read_records(config.path, config.validation_path), codec_of(config)
    check_vocab(vocab, codec.vocab)
    encoded = lambda every: [Prompt(tuple(encoded_prompt(codec, one["prompt"])), one) for one in every]
    rows = lambda every: PromptRows(encoded(every), config.sequence_length, seed, records.rewards)
    sizes = f"{plural(len(records.train), 'prompt')} to train on, {len(records.validation):,} for validation"
    return Data(
        train=rows(records.train),
        validation=rows(records.validation) if records.validation else None,
        vocab=vocab or codec.vocab,
        separator=codec.end,
        decode=codec.decode,
        encode_start=codec.encode_start,
        description=f"prompts of {records.name}: {sizes}",
    )

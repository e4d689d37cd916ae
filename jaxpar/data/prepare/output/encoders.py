"""Documents as tokens: plain text in pieces, or conversations, pairs of them or marked ones, with the loss mask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, UInt, UInt8

from jaxpar.config.errors import UserError
from jaxpar.data.chat.conversation import conversation_of, labelled_of, pair_of
from jaxpar.data.chat.encoding import ChatEncoder
from jaxpar.data.chat.messages import Unusable
from jaxpar.data.chat.renderer import Rendered
from jaxpar.data.chat.template import ChatTemplate
from jaxpar.data.pairs import DESIRABLE, UNDESIRABLE
from jaxpar.data.prepare.input.documents import NoObject, object_of
from jaxpar.data.prepare.job import TokenForm
from jaxpar.data.prepare.output.pieces import Cuts, find_cuts
from jaxpar.data.tokens.text_codec import tokens_before
from jaxpar.data.tokens.tokenizer_file import Tokenizer, without_panics

BATCH_LETTERS = 2**18
"""Characters that are encoded at once, unless a piece has more."""


class NotEncodable(ValueError):
    """The reason why a document has no tokens."""


class Text(NamedTuple):
    """A document to encode, or a pair of conversations."""

    pieces: list[str]
    """The document cut into pieces, or the text of each conversation."""
    raw: bytes
    """The complete text in UTF-8."""
    ranges: Sequence[Sequence[tuple[int, int]]] = ()
    """The character ranges that the loss includes, of each conversation."""
    is_open: Sequence[bool] = ()
    """Whether the token after each conversation ends the assistant's turn."""
    mark: int = DESIRABLE
    """Mark of the tokens that count."""

    @property
    def letters(self) -> int:
        """The number of characters of all pieces."""
        return sum(map(len, self.pieces))


class Encoded(NamedTuple):
    """A document, or a pair of them, as tokens, the end-of-document token last."""

    tokens: UInt[np.ndarray, " n"]
    counted: UInt8[np.ndarray, " n"] | None
    """The mark of each target of the loss, and 0 of other tokens; None where all are targets."""
    lengths: tuple[int, ...]
    """Tokens of each document."""


class PlainText:
    """Documents of text: names of special tokens are text; a document begins with the tokens that the tokenizer puts
    before a text, if any, and ends with the end-of-document token."""

    def __init__(self, form: TokenForm, tokenizer: Tokenizer) -> None:
        self._form, self._tokenizer = form, tokenizer
        with without_panics():
            self._before = to_token_dtype(tokens_before(tokenizer), form)
        self._cuts = find_cuts(tokenizer)

    def text(self, document: str) -> Text:
        """The document to encode. Raises `NotEncodable`, or `UnicodeEncodeError`."""
        raw = document.encode()
        pieces = self._cuts.pieces(document)
        if pieces is None:
            raise NotEncodable(_uncut(len(document), self._cuts))
        return Text(pieces, raw)

    def encoded(self, texts: Sequence[Text]) -> Iterator[Encoded]:
        """Encode each text as tokens."""
        tokens: list[np.ndarray] = []
        for group in _groups(texts):
            with without_panics():
                encodings = self._tokenizer.encode_batch_fast([piece for piece, _ in group], add_special_tokens=False)
            for (_, last), one in zip(group, encodings, strict=True):
                tokens.append(to_token_dtype(one.ids, self._form))
                if last:
                    joined = np.concatenate([self._before, *tokens, to_token_dtype([self._form.separator], self._form)])
                    yield Encoded(joined, None, (len(joined),))
                    tokens = []


class Chat:
    """Conversations, one in a line of JSON."""

    def __init__(self, form: TokenForm, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self._form, self._encoder = form, ChatEncoder(template, tokenizer)

    def text(self, document: str) -> Text:
        """The conversation to encode. Raises `NotEncodable`, or `UnicodeEncodeError`."""
        try:
            conversation = conversation_of(object_of(document))
            rendered = self._encoder.rendered(conversation)
        except (NoObject, Unusable) as error:
            raise NotEncodable(str(error)) from None
        return Text(
            [rendered.text], rendered.text.encode(), [rendered.ranges], [self._encoder.is_open(conversation, rendered)]
        )

    def encoded(self, texts: Sequence[Text]) -> Iterator[Encoded]:
        """Encode conversations as tokens with a loss mask of the assistant's; those of a text are joined.

        The tokens of a conversation end with the end-of-document token, which is added where it does not.
        """
        rendered = [Rendered(*each) for text in texts for each in zip(text.pieces, text.ranges, strict=True)]
        encodings = iter(self._encoder.encoded(rendered))
        for text in texts:
            answers = [self._ended(*next(encodings), is_open) for is_open in text.is_open]
            tokens, counted = (np.concatenate(parts) for parts in zip(*answers, strict=True))
            marks = text.mark * counted.astype(np.uint8)
            yield Encoded(to_token_dtype(tokens, self._form), marks, tuple(len(ids) for ids, _ in answers))

    def _ended(self, ids: np.ndarray, counted: np.ndarray, is_open: bool) -> tuple[np.ndarray, np.ndarray]:
        if len(ids) and ids[-1] == self._form.separator:
            return ids, counted
        return np.append(ids, self._form.separator), np.append(counted, is_open)


class Pairs(Chat):
    """Pairs of conversations that begin alike, one pair in a line of JSON; what follows the common prompt counts."""

    def text(self, document: str) -> Text:
        """The pair to encode, the chosen conversation first. Raises `NotEncodable`, or `UnicodeEncodeError`."""
        try:
            pair = pair_of(object_of(document))
            answers = [(one, self._encoder.rendered(one, pair.prompt)) for one in (pair.chosen, pair.rejected)]
        except (NoObject, Unusable) as error:
            raise NotEncodable(str(error)) from None
        texts = [rendered.text for _, rendered in answers]
        return Text(
            texts, "".join(texts).encode(), [rendered.ranges for _, rendered in answers],
            [self._encoder.is_open(*each) for each in answers],
        )  # fmt: skip


class Labelled(Chat):
    """Marked conversations, one in a line of JSON; what follows the prompt counts, with the mark."""

    def text(self, document: str) -> Text:
        """The conversation to encode. Raises `NotEncodable`, or `UnicodeEncodeError`."""
        try:
            labelled = labelled_of(object_of(document))
            rendered = self._encoder.rendered(labelled.conversation, labelled.prompt)
        except (NoObject, Unusable) as error:
            raise NotEncodable(str(error)) from None
        is_open = self._encoder.is_open(labelled.conversation, rendered)
        mark = DESIRABLE if labelled.desirable else UNDESIRABLE
        return Text([rendered.text], rendered.text.encode(), [rendered.ranges], [is_open], mark)


def to_token_dtype(ids: Sequence[int] | Int[np.ndarray, " n"], form: TokenForm) -> UInt[np.ndarray, " n"]:
    """Numbers of tokens in the type of `form`. Raises `UserError` where one is beyond the vocabulary."""
    tokens = np.array(ids, np.uint32)
    if (largest := int(tokens.max(initial=0))) >= form.vocab:
        raise UserError(f"{form.tokenizer} made token {largest}, beyond its own vocabulary of {form.vocab}")
    return tokens.astype(np.dtype(form.dtype).newbyteorder("<"))


def _uncut(letters: int, cuts: Cuts) -> str:
    """The reason why a document of `letters` characters cannot be encoded."""
    where = "it has no place" if cuts.spaces or cuts.lines else "its tokenizer has no place"
    return (
        f"{letters:,} characters, and {where} at which cutting it would certainly leave the tokens the same; "
        f"expected at most {cuts.largest:,}"
    )


def _groups(texts: Sequence[Text]) -> Iterator[list[tuple[str, bool]]]:
    """Pieces that are encoded at once, each with whether it is the last one of its text."""
    group, letters = [], 0
    for text in texts:
        for size, piece in enumerate(text.pieces, 1):
            if group and letters + len(piece) > BATCH_LETTERS:
                yield group
                group, letters = [], 0
            group.append((piece, size == len(text.pieces)))
            letters += len(piece)
    if group:
        yield group

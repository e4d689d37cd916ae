"""A tokenizer with its special tokens: what begins, separates and ends texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from jaxpar.config.errors import UserError
from jaxpar.config.reading.json_text import parse_json
from jaxpar.config.reading.text_file import LONGEST_WRITTEN, read_text_file
from jaxpar.config.spelling import named
from jaxpar.data.text import Text
from jaxpar.data.tokens.text_codec import TextCodec
from jaxpar.data.tokens.token_index import INDEX, read_index
from jaxpar.data.tokens.tokenizer_file import Tokenizer, end_of_document

SETTINGS, GENERATION, CONFIG = "tokenizer_config.json", "generation_config.json", "config.json"


@dataclass(frozen=True)
class ModelText(Text):
    """The tokenizer of a model."""

    begin: int | None
    """The token before a text without a context: the last of those that the tokenizer puts before a text; where
    it puts none, the beginning, or else the end, of a document."""
    encode: Callable[[str], list[int]]
    """Function from a text that follows another one to tokens, without added ones."""
    encode_start: Callable[[str], list[int]]
    """The tokens of a text that begins a document, those that the tokenizer puts before it first."""
    special: Mapping[str, int]
    """Special tokens by their names."""
    name: str
    """Name of its file, or of the data of the model's run."""

    def check_tokens(self, rows: Iterable[Iterable[int]], vocab: int) -> None:
        """Refuse tokens that a model with a vocabulary of `vocab` does not have: the tokenizer is another model's."""
        wrong = next((token for row in rows for token in row if token >= vocab), None)
        if wrong is not None:
            raise UserError(
                f"--tokenizer: {self.name} makes token {wrong} of a text, and the model's vocabulary has {vocab}; "
                "expected the tokenizer of the model"
            )


def read_model_text(file: Path, model: Path | None, *, special_tokens: bool = False) -> ModelText:
    """The tokenizer of a file.

    Args:
        file: a `tokenizer.json`. A token folder around it ends texts with its own token too.
        model: a folder whose `generation_config.json`, or else `config.json`, names more tokens that end a text.
        special_tokens: the names of special tokens in a text are those tokens.

    Raises:
        UserError: the file, or one of the settings beside it, cannot be read.
    """
    codec = TextCodec(file, named(file))
    settings = _settings(file.with_name(SETTINGS))
    begin, end = (_token(codec.tokenizer, settings.get(f"{name}_token")) for name in ("bos", "eos"))
    separator = read_index(file.parent).separator if (file.parent / INDEX).exists() else None
    if end is None and separator is None:
        with suppress(UserError):  # a tokenizer without such a token: only the limit ends a text
            end = end_of_document(codec.tokenizer, None)
    # As transformers: the model's own settings stand in for those of generation where these have no file.
    files = [] if model is None else [model / GENERATION, model / CONFIG]
    end_tokens = next((_settings(one).get("eos_token_id") for one in files if one.exists()), None)
    end_tokens = [end, separator, *(end_tokens if isinstance(end_tokens, list) else [end_tokens])]
    starts = [*reversed(codec.before), begin, separator, end]
    return ModelText(
        decode=codec.decode,
        stops=tuple(dict.fromkeys(token for token in end_tokens if type(token) is int)),
        begin=next((token for token in starts if token is not None), None),
        encode=partial(codec.encode, special_tokens=special_tokens),
        encode_start=partial(codec.encode_start, special_tokens=special_tokens),
        special=codec.special,
        name=named(file),
    )


def _settings(file: Path) -> dict[str, object]:
    """A file of JSON beside a tokenizer or a model; empty where there is none."""
    try:
        settings = parse_json(read_text_file(file, LONGEST_WRITTEN, named(file)), named(file))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{named(file)}: cannot be read ({getattr(error, 'strerror', 'it is not UTF-8')})") from None
    if not isinstance(settings, dict):
        raise UserError(f"{named(file)}: expected a mapping of keys")
    return settings


def _token(tokenizer: Tokenizer, written: object) -> int | None:
    """The id of a special token as `tokenizer_config.json` has it: its text, or a mapping with it."""
    text = written.get("content") if isinstance(written, dict) else written
    return tokenizer.token_to_id(text) if isinstance(text, str) else None

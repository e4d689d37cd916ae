"""A tokenizer with its special tokens: what begins, separates and ends texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxpar.config.errors import UserError
from jaxpar.config.reading.json_text import parse_json
from jaxpar.config.reading.text_file import LONGEST_WRITTEN, read_text_file
from jaxpar.config.spelling import named
from jaxpar.data.text import Text
from jaxpar.data.tokens.tokenizer_file import TextCodec, end_of_document, load_tokenizer

SETTINGS, GENERATION = "tokenizer_config.json", "generation_config.json"


@dataclass(frozen=True)
class ModelText(Text):
    """The tokenizer of a model, which adds no token and takes the name of a special token for text in `encode`."""

    begin: int | None
    """The token before a text of which nothing else comes before: the beginning, or else the end, of a document."""
    encode_marked: Callable[[str], list[int]]
    """As `encode`, but the names of special tokens are those tokens, and those of the tokenizer's template are added,
    unless the text begins with them."""
    encode_part: Callable[[str], list[int]]
    """As `encode_marked`, with nothing added: of a text that follows another one."""
    special: Mapping[str, int]
    """Special tokens by their names."""
    name: str
    """Of its file, or of the data of the model's run."""


def read_model_text(file: Path, model: Path | None) -> ModelText:
    """The tokenizer of a file; texts also end where the `generation_config.json` of the folder `model` says.

    Raises:
        UserError: the file, or one of the settings beside it, cannot be read.
    """
    codec, marked = TextCodec(file), load_tokenizer(file, named(file))
    marked.encode_special_tokens = False
    settings = _settings(file.with_name(SETTINGS))
    special = {name: _token(marked, settings.get(f"{name}_token")) for name in ("bos", "eos")}
    begin, end = special["bos"], special["eos"]
    if end is None:
        with suppress(UserError):  # a tokenizer without such a token: only the limit ends a text
            end = end_of_document(marked, None)
    more = {} if model is None else _settings(model / GENERATION)
    ends = more.get("eos_token_id")
    ends = [token for token in (ends if isinstance(ends, list) else [ends]) if type(token) is int]
    begin = end if begin is None else begin
    first = None if begin is None else marked.id_to_token(begin)

    def encode_marked(text: str) -> list[int]:
        return marked.encode(text, add_special_tokens=first is None or not text.startswith(first)).ids

    added = marked.get_added_tokens_decoder().items()
    return ModelText(
        codec.encode, codec.decode, tuple(dict.fromkeys([*([] if end is None else [end]), *ends])), begin,
        encode_marked, lambda text: marked.encode(text, add_special_tokens=False).ids,
        {token.content: number for number, token in added if token.special}, named(file),
    )  # fmt: skip


def _settings(file: Path) -> dict[str, Any]:
    """A file of JSON beside a tokenizer or a model; empty where there is none."""
    try:
        found = parse_json(read_text_file(file, LONGEST_WRITTEN, named(file)), named(file))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{named(file)}: cannot be read ({getattr(error, 'strerror', 'it is not UTF-8')})") from None
    if not isinstance(found, dict):
        raise UserError(f"{named(file)}: expected a mapping of keys")
    return found


def _token(tokenizer: Any, written: object) -> int | None:
    """The id of a special token as `tokenizer_config.json` has it: its text, or a mapping with it."""
    text = written.get("content") if isinstance(written, dict) else written
    return tokenizer.token_to_id(text) if isinstance(text, str) else None

"""`tokenizer.json`: a tokenizer of Hugging Face's `tokenizers`, used for text only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpar.config.errors import UserError
from jaxpar.config.install import install_command
from jaxpar.config.reading.json_text import parse_json
from jaxpar.config.reading.text_file import read_text_file
from jaxpar.config.spelling import cut, printable, quoted
from jaxpar.data.tokens.tokenizer_limits import LONGEST_TOKENIZER, check_limits

if TYPE_CHECKING:
    import tokenizers

type Tokenizer = tokenizers.Tokenizer

TOKENIZER = "tokenizer.json"
END_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "<EOS>", "[EOS]", "[SEP]")
"""Names of the end-of-document token in published tokenizers, the likeliest first."""


def tokenizers_installed() -> bool:
    """Whether the `tokenizers` package is installed."""
    return find_spec("tokenizers") is not None


def tokenizer_path(path: Path) -> Path:
    """The tokenizer of `--tokenizer`, which names the file or its folder."""
    return path / TOKENIZER if path.is_dir() else path


def load_tokenizer(path: Path, label: str) -> Tokenizer:
    """The tokenizer of a file. Text that spells a special token stays text; nothing is cut, padded or added.

    Args:
        path: the file.
        label: its name in messages.

    Raises:
        UserError: `tokenizers` is not installed, or the file cannot be read or is not a tokenizer.
    """
    if not tokenizers_installed():
        raise UserError(f"{label} needs the package tokenizers, which is not installed: {install_command('data')}")
    from tokenizers import Tokenizer

    try:
        text = read_text_file(path, LONGEST_TOKENIZER, label)
    except FileNotFoundError:
        raise UserError(f"{label} does not exist; expected a tokenizer.json of Hugging Face's tokenizers") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UserError(f"{label} cannot be read ({reason})") from error
    check_limits(parse_json(text, label), label)
    with without_panics(label, "is not a tokenizer file of Hugging Face's tokenizers"):
        return prepared_for_text(Tokenizer.from_str(text))


@contextmanager
def without_panics(label: str = "the tokenizer", what: str = "gives up on a text") -> Iterator[None]:
    """A text that `tokenizers` gives up on, such as one on which a regular expression of the file backtracks for too
    long, or one that has an unknown token where there is none for these, is a mistake of the file. Raises
    `UserError`."""
    try:
        yield
    except BaseException as error:
        # A panic of Rust is no `Exception`, and its class cannot be imported; other errors are plain exceptions.
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{label} {what} ({printable(cut(error, 120))}); expected another tokenizer") from None


def prepared_for_text(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer, set to encode documents as they are."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """The largest token id plus one: some vocabularies have gaps."""
    return max(vocabulary(tokenizer).values(), default=-1) + 1


def vocabulary(tokenizer: Tokenizer) -> dict[str, int]:
    """The tokens of a tokenizer, the special ones included."""
    return tokenizer.get_vocab(with_added_tokens=True)


def end_of_document(tokenizer: Tokenizer, wanted: str | None, option: str = "--separator") -> int:
    """The token that ends a document: the `wanted` one, or the first of `END_NAMES` that exists.

    Raises:
        UserError: there is no such token.
    """
    if wanted is not None:
        token_id = tokenizer.token_to_id(wanted)
        if token_id is None:
            raise UserError(f"{option} {quoted(wanted)} is not a token of the tokenizer; {_special(tokenizer)}")
        return token_id
    for name in END_NAMES:
        token_id = tokenizer.token_to_id(name)
        if token_id is not None:
            return token_id
    raise UserError(
        f"the tokenizer lacks an end-of-document token ({', '.join(END_NAMES[:4])}, ...): name one "
        f"with {option}; {_special(tokenizer)}"
    )


def _special(tokenizer: Tokenizer) -> str:
    names = [repr(added.content) for _, added in sorted(tokenizer.get_added_tokens_decoder().items())]
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return f"its special tokens are {', '.join(names[:12])}{more}" if names else "it has no special tokens"

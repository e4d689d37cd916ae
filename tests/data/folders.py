"""Small texts, a tokenizer of bytes, and token folders made of them: what tests of prepared data share."""

import io
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console

from jaxpar.data.prepare import Options, prepare
from jaxpar.data.tokens.token_folder import TokenFolder

END = "<|endoftext|>"
WORDS = ("the", "of", "and", "a", "to", "in", "is", "you", "that", "it", "he", "was", "for", "on", "are", "as", "with")


def texts(count: int, seed: int = 0) -> list[str]:
    """`count` documents, each with its number, of a few words up to a few lines."""
    return [
        f"{seed}/{number}: "
        + " ".join(WORDS[(number * 7 + place * place + seed) % len(WORDS)] for place in range(length))
        for number in range(count)
        for length in [3 + (number * 31 + seed) % 40]
    ]


def write_tokenizer(path: Path, *, more: tuple[str, ...] = (), stride: int = 1) -> Path:
    """A tokenizer of bytes and an end-of-document token, 257 in all; `more` are special tokens besides.

    With a `stride` the numbers of the bytes have gaps.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer: Any = Tokenizer(models.BPE({letter: number * stride for number, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END, *more])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(tokenizer.to_str())
    return path


def write_jsonl(path: Path, documents: list[str]) -> Path:
    path.write_text("".join(json.dumps({"id": number, "text": text}) + "\n" for number, text in enumerate(documents)))
    return path


def options(out: Path, *inputs: Path | str, **changes: Any) -> Options:
    """Options with small units and shards, and a tokenizer beside `out`."""
    given: dict[str, Any] = {"unit_bytes": 500, "shard_tokens": 3000, "validation_fraction": 0.2, "processes": 1}
    if "train_bpe" not in changes and "tokenizer" not in changes:
        given["tokenizer"] = write_tokenizer(out.with_name("tokenizer-of-bytes.json"))
    return Options(inputs=tuple(str(path) for path in inputs), out=out, **(given | changes))


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


def prepared(out: Path, documents: list[str], **changes: Any) -> TokenFolder:
    """A token folder at `out` with these documents."""
    source = write_jsonl(out.with_name(f"{out.name}-input.jsonl"), documents)
    return prepare(options(out, source, **changes), quiet())


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below `folder`, by its name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def decoded(folder: TokenFolder) -> tuple[list[str], list[str]]:
    """The documents to train on and those for validation, as text."""
    found = []
    for stream in (folder.train, folder.validation):
        bounds = [] if stream is None else [*stream.starts[:].tolist(), len(stream)]
        found.append([])
        for first, last in pairwise(bounds):
            assert stream is not None
            tokens = stream.tokens[first:last]
            assert tokens[-1] == folder.index.separator
            found[-1].append(folder.codec.decode(tokens[:-1]))
    return found[0], found[1]

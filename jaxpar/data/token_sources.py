"""`data.source: tokens`: a token folder, several mixed by weight, or a plain file of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from jaxpar.config.errors import UserError
from jaxpar.config.parts import LABELS_FORMAT
from jaxpar.config.ramp import examples_before
from jaxpar.config.schema import DataConfig
from jaxpar.config.spelling import quoted
from jaxpar.data.document_rows import DROP, DocumentRows
from jaxpar.data.mixture import MixedSource, Mixture, MixturePlan
from jaxpar.data.opened import (
    VALIDATION_SEED,
    Data,
    PairedSplit,
    model_vocab,
    size,
    split_sizes,
    train_rows,
    validation_rows,
    validation_size,
)
from jaxpar.data.packing import NoRow, PackedRows, Rows
from jaxpar.data.pairs import LabelledRows, PairRows
from jaxpar.data.stream import TokenStream
from jaxpar.data.tokens.document_starts import DocumentStarts
from jaxpar.data.tokens.sharded_tokens import ShardedTokens
from jaxpar.data.tokens.token_file import read_token_file
from jaxpar.data.tokens.token_folder import TokenFolder, open_token_folder
from jaxpar.data.tokens.token_index import TRAIN, VALIDATION, Index
from jaxpar.data.tokens.tokenizer_file import tokenizers_installed
from jaxpar.pages.units import percent
from jaxpar.remote.cache import local_path


def open_tokens(config: DataConfig, vocab: int | None, seed: int) -> Data:
    """The data of `data.path` or `data.sources`; see `open_data`."""
    if config.sources is not None:
        later = {path: 0.0 for one in config.later_sources for path in one.sources}
        return _open_folders(config, later | config.sources, vocab, seed)
    if config.path is None:
        raise UserError("data.path is not set; data.source=tokens expects the path of a token folder or a .npy file")
    if local_path(config.path, "data.path").is_dir():
        return _open_folders(config, {config.path: 1.0}, vocab, seed)
    return _open_file(config, config.path, vocab, seed)


def _open_folders(config: DataConfig, weights: dict[str, float], vocab: int | None, seed: int) -> Data:
    key = "data.path" if config.sources is None else "data.sources"
    folders = {path: _open_folder(path, key) for path in weights}
    _check_alike(folders, key)
    first = next(iter(folders.values()))
    index = first.index
    if config.separator not in (None, index.separator):
        raise UserError(
            f"data.separator={config.separator} is not the token that ends documents in "
            f"{key}={quoted(str(first.path))}, "
            f"which is {index.separator}; expected {index.separator}, or null"
        )
    _check_long_conversations(config, key, [folder.index for folder in folders.values()])
    if any(folder.index.answers for folder in folders.values()):
        return _open_pairs(config, folders, key, vocab, seed)
    rows = {path: train_rows(folder.train, config, seed, path) for path, folder in folders.items()}
    sets: dict[str, PackedRows | DocumentRows] = {}
    for name, path in (config.validation or {}).items():
        sets[name] = _rows_of(config, path, f"data.validation.{name}", folders, key, f"data.validation.{name}")
    validation, words = (next(iter(sets.values())), "") if sets else _validation(config, folders, key)
    words += ", ".join(f"{name}: {_validation_size(one)}" for name, one in sets.items())
    known = tokenizers_installed()
    if not known:
        words += "; the package tokenizers is not installed, so samples are shown as token numbers"
    total = sum(weights.values())
    if config.sources is None:
        train: Rows = next(iter(rows.values()))
        described = "".join(f"{path}: {_size(rows[path])} to train on, " for path in folders)
    else:
        sources = [MixedSource(path, folders[path].identity, rows[path], weights[path]) for path in folders]
        train = Mixture(sources, seed=seed, plan=_plan(config, sources))
        described = "".join(f"{percent(weights[path], total)} {path}: {_size(rows[path])}; " for path in folders)
        for start, later in train.phases[1:]:
            shares = ", ".join(f"{percent(later[path], sum(later.values()))} {path}" for path in folders if later[path])
            described += f"from row {start:,} on {shares}; "
    return Data(
        train=train,
        validation=validation,
        vocab=model_vocab(vocab, index.vocab, key, first.path),
        separator=index.separator,
        decode=first.codec.decode if known else None,
        encode_start=first.codec.encode_start if known else None,
        description=described + words,
        sets=sets,
    )


def _plan(config: DataConfig, sources: Sequence[MixedSource]) -> MixturePlan:
    """Changes of the weights, and the most rows of each source, by identity."""
    changes = [(0, {source.identity: source.weight for source in sources})]
    for later in config.later_sources:
        weights = {source.identity: later.sources.get(source.name, 0.0) for source in sources}
        changes.append((examples_before(config, later.after), weights))
    most = {
        source.identity: int(config.max_epochs[source.name] * source.rows.rows_per_epoch)
        for source in sources
        if config.max_epochs is not None and source.name in config.max_epochs
    }
    return MixturePlan(changes, most)


def _size(rows: PackedRows | DocumentRows) -> str:
    return rows.description if isinstance(rows, DocumentRows) else size(rows.stream, "document")


def _check_long_conversations(config: DataConfig, key: str, indexes: Sequence[Index]) -> None:
    """Refuse a treatment of long conversations where there are none."""
    if config.long_conversations != DROP and all(index.answers or index.chat is None for index in indexes):
        answers = any(index.answers for index in indexes)
        what = "answers, which are dropped where they are longer than a row" if answers else "no conversations"
        raise UserError(
            f"data.long_conversations: {config.long_conversations} would not be used, because {key} has {what}; "
            f"expected {DROP}"
        )


def _open_pairs(config: DataConfig, folders: dict[str, TokenFolder], key: str, vocab: int | None, seed: int) -> Data:
    """The data of a folder of pairs, or of marked answers."""
    (path, folder), *others = folders.items()
    if others:
        raise UserError(
            f"{key}: a folder of answers to compare is not mixed with others; expected data.path with one folder: "
            "python -m jaxpar.prepare takes several files"
        )
    if config.validation is not None:
        raise UserError(
            f"data.validation: {key} has answers to compare; expected data.validation_path with one folder of them"
        )
    length, index = config.sequence_length, folder.index
    of = LabelledRows if index.answers == LABELS_FORMAT else PairRows
    train = PairedSplit(folder, TRAIN, of(folder.train, sequence_length=length, seed=seed, name=path))
    other = folder if config.validation_path is None else _validation_folder(config.validation_path, folders, key)
    if other.index.answers != index.answers:
        raise UserError(
            f"data.validation_path={quoted(str(other.path))} has no {of.noun}s, and {key}={quoted(path)} has"
        )
    split, stream = (VALIDATION, other.validation) if other.validation is not None else (TRAIN, other.train)
    validation, words = None, "nothing for validation"
    if config.validation_path is not None or split == VALIDATION:
        try:
            rows = of(stream, sequence_length=length, seed=VALIDATION_SEED, name=_VALIDATION_NAME)
        except NoRow as error:
            if config.validation_path is not None:
                raise
            words = f"nothing for validation ({error})"
        else:
            validation, words = PairedSplit(other, split, rows), f"{rows.description} for validation"
    codec = folder.codec if tokenizers_installed() else None
    return Data(
        train=train.rows,
        validation=None if validation is None else validation.rows,
        vocab=model_vocab(vocab, index.vocab, key, folder.path),
        separator=index.separator,
        decode=None if codec is None else codec.decode,
        encode_start=None if codec is None else codec.encode_start,
        description=f"{path}: {train.rows.description} to train on, {words}",
        paired=(train,) if validation is None else (train, validation),
    )


def _open_folder(path: str, key: str) -> TokenFolder:
    folder = local_path(path, key)
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise UserError(f"{key}: {quoted(path)} {what}; expected a token folder (python -m jaxpar.prepare makes one)")
    return open_token_folder(path, key=key)


def _check_alike(folders: dict[str, TokenFolder], key: str) -> None:
    """Refuse folders of different tokenizers, whose tokens cannot be distinguished, and folders named twice."""
    (first_path, first), *others = folders.items()
    for path, folder in others:
        if folder.index.tokenizer.digest != first.index.tokenizer.digest or (
            (folder.index.vocab, folder.index.separator) != (first.index.vocab, first.index.separator)
        ):
            raise UserError(
                f"{key}: {quoted(path)} was made with another tokenizer than {quoted(first_path)}; expected folders "
                "that were "
                "prepared with the same tokenizer file"
            )
    by_identity: dict[str, str] = {}
    for path, folder in folders.items():
        if folder.identity in by_identity:
            raise UserError(
                f"{key}: {quoted(path)} and {quoted(by_identity[folder.identity])} hold the same tokens; name one "
                "of them, with "
                "the sum of their weights"
            )
        by_identity[folder.identity] = path


def _validation(config: DataConfig, folders: dict[str, TokenFolder], key: str) -> tuple[Rows | None, str]:
    """The rows of the validation data, and words about them.

    Without `data.validation_path` it is the validation data of all folders, whatever their weights, so that losses are
    comparable between runs with different weights.
    """
    if config.validation_path is not None:
        rows = _rows_of(config, config.validation_path, "data.validation_path", folders, key, _VALIDATION_NAME)
        return rows, _validation_size(rows)
    streams = [folder.validation for folder in folders.values() if folder.validation is not None]
    text, chats = ([one for one in streams if (one.loss_mask is not None) == chat] for chat in (False, True))
    row_sources, words = [], []
    for joined in (_joined(alike) for alike in (text, chats) if alike):
        try:
            row_sources.append(validation_rows(joined, config, _VALIDATION_NAME))
            words.append(_validation_size(row_sources[-1]))
        except NoRow as error:
            words.append(f"{validation_size(None)} ({error})")
    if len(row_sources) < 2:
        return (row_sources[0] if row_sources else None), ", ".join(words) or validation_size(None)
    # Each kind by its number of rows, so that an epoch has every row about once.
    sources = [MixedSource(str(kind), str(kind), rows, rows.rows_per_epoch) for kind, rows in enumerate(row_sources)]
    return Mixture(sources, seed=VALIDATION_SEED), ", ".join(words)


_VALIDATION_NAME = "the validation data"


def _rows_of(
    config: DataConfig, path: str, setting: str, folders: dict[str, TokenFolder], key: str, name: str
) -> PackedRows | DocumentRows:
    """The rows to evaluate on of the folder of a setting: its validation documents, or all of it if it has none."""
    other = _validation_folder(path, folders, key, setting)
    if other.index.answers:
        raise UserError(
            f"{setting}={quoted(path)} has answers to compare, and {key} has none; "
            "expected a folder of single documents"
        )
    return validation_rows(other.validation or other.train, config, name)


def _validation_size(rows: PackedRows | DocumentRows) -> str:
    return f"{rows.description} for validation" if isinstance(rows, DocumentRows) else validation_size(rows.stream)


def _validation_folder(
    path: str, folders: dict[str, TokenFolder], key: str, setting: str = "data.validation_path"
) -> TokenFolder:
    """The folder of a setting. Raises `UserError` where it is not a folder of tokens like those to train on."""
    if not local_path(path, setting).is_dir():
        raise UserError(
            f"{setting}={quoted(path)} is not a token folder, and {key} names token folders; expected one that "
            "was prepared with the same tokenizer file"
        )
    other = open_token_folder(path, key=setting)
    first_path, first = next(iter(folders.items()))
    if other.index.tokenizer.digest != first.index.tokenizer.digest:
        raise UserError(
            f"{setting}={quoted(path)} was made with another tokenizer than {key}={quoted(first_path)}; "
            "expected a folder that was prepared with the same tokenizer file"
        )
    return other


def _joined(streams: list[TokenStream]) -> TokenStream:
    """The documents of several folders of text, or of several of conversations, one after the other."""
    first, *others = streams
    tokens, starts, loss_mask = first.tokens, first.starts, first.loss_mask
    assert isinstance(tokens, ShardedTokens) and isinstance(starts, DocumentStarts)
    for stream in others:
        assert isinstance(stream.tokens, ShardedTokens) and isinstance(stream.starts, DocumentStarts)
        tokens, starts = tokens.concatenate(stream.tokens), starts.concatenate(stream.starts)
        if isinstance(loss_mask, ShardedTokens) and isinstance(stream.loss_mask, ShardedTokens):
            loss_mask = loss_mask.concatenate(stream.loss_mask)
    return TokenStream(tokens, starts, loss_mask)


def _open_file(config: DataConfig, path: str, vocab: int | None, seed: int) -> Data:
    separator = config.separator
    _check_long_conversations(config, "data.path", [])
    train, largest = read_token_file(path, key="data.path", separator=separator, vocab=vocab)
    if separator is not None and len(train.starts) == 1 and train.tokens[-1:] != separator:
        raise UserError(
            f"data.separator={separator} does not occur in data.path={quoted(path)}; expected the token that ends "
            "its documents, or null for a file that is one document"
        )
    validation = None
    if config.validation is not None:
        raise UserError(
            "data.validation names token folders, and data.path is a file of tokens; expected data.validation_path"
        )
    if config.validation_path is not None:
        if local_path(config.validation_path, "data.validation_path").is_dir():
            raise UserError(
                f"data.validation_path={quoted(config.validation_path)} is a folder, and data.path is a file of "
                "tokens, whose tokenizer is not known; expected a .npy file with one dimension of unsigned integers"
            )
        validation, other = read_token_file(
            config.validation_path, key="data.validation_path", separator=separator, vocab=vocab
        )
        largest = max(largest, other)
    return Data(
        train=train_rows(train, config, seed, path),
        validation=None if validation is None else validation_rows(validation, config, config.validation_path or ""),
        vocab=vocab or largest + 1,
        separator=separator,
        decode=None,
        encode_start=None,
        description=f"{path}: {split_sizes(train, validation, 'document')}",
    )

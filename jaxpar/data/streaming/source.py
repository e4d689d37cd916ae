"""`data.source: stream`: text that is tokenized while a run trains."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import chain

from jaxpar.config.errors import UserError
from jaxpar.config.reading.text_file import read_file
from jaxpar.config.schema import DataConfig
from jaxpar.config.spelling import quoted
from jaxpar.data.opened import Data, model_vocab, validation_rows, validation_size
from jaxpar.data.packing import NoRow, PackedRows
from jaxpar.data.prepare.input.files import Input
from jaxpar.data.prepare.job import TokenForm
from jaxpar.data.streaming.block import BlockReader, BlockTask
from jaxpar.data.streaming.files import Blocks, find_files, identity
from jaxpar.data.streaming.lanes import BlockOrder
from jaxpar.data.streaming.rows import StreamRows, first_documents
from jaxpar.data.streaming.workers import Workers
from jaxpar.data.tokens.digests import digest
from jaxpar.data.tokens.text_codec import TextCodec
from jaxpar.data.tokens.tokenizer_file import end_of_document, tokenizer_path, vocabulary_size
from jaxpar.distributed.launchers import find_launch
from jaxpar.pages.units import plural, size
from jaxpar.remote.cache import local_path

VALIDATION_TOKENS = 2**20
"""Most tokens of the validation documents, rounded up to a block: they are in memory, and read at the beginning."""
MOST_WORKERS = 16
"""Most processes by default."""


class StreamCodec(TextCodec):
    """The tokens of the texts.

    Args:
        config: names the tokenizer and the end-of-document token.
    """

    def __init__(self, config: DataConfig) -> None:
        if config.tokenizer is None:
            raise UserError(
                "data.tokenizer: null, and data.source: stream tokenizes text; expected a tokenizer.json of Hugging "
                "Face's tokenizers, or its folder"
            )
        self.file = tokenizer_path(local_path(config.tokenizer, "data.tokenizer"))
        super().__init__(self.file, f"data.tokenizer: {quoted(config.tokenizer)}")
        self.vocab = vocabulary_size(self.tokenizer)
        self.end = end_of_document(self.tokenizer, config.end_token, "data.end_token")


def open_stream(config: DataConfig, vocab: int | None, seed: int) -> Data:
    """The data of `data.source: stream`; see `open_data`."""
    assert config.path is not None, "the path is checked"
    codec = StreamCodec(config)
    files = find_files(config.path, "data.path", config.text_key)
    form = TokenForm(tokenizer=codec.file, vocab=codec.vocab, separator=codec.end, text_key=config.text_key)
    workers = Workers(form, config.workers or default_workers(os.environ))
    fraction = config.validation_fraction if config.validation_path is None else 0.0
    order = BlockOrder(files, config.batch_size, seed, fraction)
    _check_not_empty(config.path, BlockReader(form, codec.tokenizer), order)
    validation, words = _validation(config, files, workers)
    decisive = identity(files), digest(read_file(codec.file)), codec.end, config.text_key, fraction
    train = StreamRows(
        order,
        workers,
        sequence_length=config.sequence_length,
        packed=config.packed,
        name=config.path,
        files=digest(repr(decisive).encode()),
    )
    total = size(sum(file.bytes for file in files))
    return Data(
        train=train,
        validation=validation,
        vocab=model_vocab(vocab, codec.vocab, "data.tokenizer", codec.file),
        separator=codec.end,
        decode=codec.decode,
        encode_start=codec.encode_start,
        description=f"{config.path}: {plural(len(files), 'file')}, {total}, tokenized by "
        f"{plural(workers.count, 'process', 'processes')} while it is read, {words}",
    )


def default_workers(environment: Mapping[str, str]) -> int:
    """Processors of this process of the run but one, of those that the processes of its host share."""
    launch = find_launch(environment)
    here = (launch.local_processes if launch is not None else None) or 1
    processors = min(len(os.sched_getaffinity(0)), (os.cpu_count() or 1) // here)
    return max(1, min(MOST_WORKERS, processors - 1))


def _check_not_empty(path: str, reader: BlockReader, order: BlockOrder) -> None:
    """Refuse files without a document to train on."""
    tasks = (BlockTask(block, order.validation_fraction) for block in order.blocks)
    if next(chain.from_iterable(map(reader.texts, tasks)), None) is None:
        raise UserError(f"data.path {quoted(path)}: {plural(len(order.files), 'file')} without a document to train on")


def _validation(config: DataConfig, files: Sequence[Input], workers: Workers) -> tuple[PackedRows | None, str]:
    """The rows of the validation documents, and words about them."""
    fraction = config.validation_fraction
    if config.validation_path is not None:
        files, fraction = find_files(config.validation_path, "data.validation_path", config.text_key), 0.0
    elif not fraction:
        return None, validation_size(None)
    blocks = Blocks(files, 1)
    stream = first_documents(workers, blocks, VALIDATION_TOKENS, validation_fraction=fraction, validation=fraction > 0)
    if stream is None:
        return None, validation_size(None)
    try:
        rows = validation_rows(stream, config, "the validation data")
    except NoRow as error:
        if config.validation_path is not None:
            raise
        return None, f"{validation_size(None)} ({error})"
    assert isinstance(rows, PackedRows), "text is packed"
    return rows, validation_size(stream)

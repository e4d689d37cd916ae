"""`data.source: demonstrations`: prompts with the answers that a model is to imitate, before it learns from rewards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.config.schema import DataConfig
from jaxpar.config.spelling import quoted
from jaxpar.data.document_rows import DocumentRows
from jaxpar.data.opened import Data, train_rows, validation_rows
from jaxpar.data.stream import TokenStream
from jaxpar.rl.prompts import Codec, check_vocab, codec_of, encoded_prompt
from jaxpar.rl.records import Record, read_records

COMPLETION = "completion"
"""The column with the text of the answer."""


def open_demonstrations(config: DataConfig, vocab: int | None, seed: int) -> Data:
    """The data of `data.source: demonstrations`; see `open_data`. Its validation prompts are those of `prompts`."""
    assert config.path is not None, "the path is checked"
    records, codec = read_records(config.path, config.validation_path), codec_of(config)
    check_vocab(vocab, codec.vocab)
    train = train_rows(_stream(records.train, codec, records.name), config, seed, records.name)
    validation = None
    if records.validation:
        validation = validation_rows(_stream(records.validation, codec, records.name), config, "the validation prompts")
    sizes = [one.description for one in (train, validation) if isinstance(one, DocumentRows)]
    words = "" if len(sizes) == 1 else " for validation"
    return Data(
        train=train,
        validation=validation,
        vocab=vocab or codec.vocab,
        separator=codec.end,
        decode=codec.decode,
        encode_start=codec.encode_start,
        description=f"demonstrations of {records.name}: {' to train on, '.join(sizes)}{words}",
    )


def _stream(records: Sequence[Record], codec: Codec, name: str) -> TokenStream:
    """The prompts with their answers and an end; the loss counts what follows a prompt. Raises `UserError`."""
    tokens, starts, loss_mask = [], [], []
    for index, one in enumerate(records, 1):
        text = one.get(COMPLETION)
        if not isinstance(text, str):
            raise UserError(
                f"data.path: {quoted(name)}: prompt {index} ({quoted(one['prompt'], 40)}) has no column {COMPLETION} "
                "with a text; expected one to imitate with data.source: demonstrations"
            )
        prompt, answer = encoded_prompt(codec, one["prompt"]), [*codec.encode(text), codec.end]
        starts.append(len(tokens))
        tokens += [*prompt, *answer]
        loss_mask += [0] * len(prompt) + [1] * len(answer)
    return TokenStream(np.array(tokens, np.uint32), np.array(starts, np.int64), np.array(loss_mask, np.uint8))

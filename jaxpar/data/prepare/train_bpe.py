"""A byte-level BPE trained on the inputs (Sennrich, Haddow and Birch, ACL 2016, on bytes as in GPT-2)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial

from jaxpar.config.errors import UserError
from jaxpar.config.install import install_command
from jaxpar.data.prepare.job import Job
from jaxpar.data.prepare.output.atomic_files import write_file
from jaxpar.data.prepare.output.chosen import chosen_documents
from jaxpar.data.prepare.output.pieces import Cuts
from jaxpar.data.prepare.output.tokenize import is_validation
from jaxpar.data.prepare.progress import Meter
from jaxpar.data.tokens.tokenizer_file import END_NAMES, Tokenizer, tokenizers_installed

CUTS = Cuts(spaces=True, lines=True)
"""The possible cuts for GPT-2's pattern, which splits the training text."""
TRAINED_ON = 2**30
"""Approximate bytes of input that a tokenizer is trained on: evenly spaced units where there is more."""


def train_bpe(job: Job, vocab: int, separator: str | None, special: Sequence[str], meter: Meter) -> int:
    """Train on the training documents of `job` and write its tokenizer; returns the size of the vocabulary.

    The result is a function of the inputs: a tie between two merges goes to the pair with the smaller tokens.

    Args:
        job: a preparation without a tokenizer.
        vocab: size of the vocabulary, the special tokens and the 256 bytes included.
        separator: how the end-of-document token is spelled; None takes a common name.
        special: other special tokens.
        meter: of the bytes that are read.

    Raises:
        UserError: `tokenizers` is not installed, an input cannot be read, or there is no text.
        OSError: the file cannot be written.
    """
    if not tokenizers_installed():
        raise UserError(f"--train-bpe needs the package tokenizers, which is not installed: {install_command('data')}")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    tokenizer: Tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(dict.fromkeys([separator or END_NAMES[0], *special])),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = _texts(job, meter)
    tokenizer.train_from_iterator(texts, trainer)
    write_file(job.tokenizer, (tokenizer.to_str(pretty=True) + "\n").encode())
    return tokenizer.get_vocab_size()


def chosen_units(job: Job) -> list[int]:
    """The units that a tokenizer is trained on."""
    total = sum(part.weight for unit in job.units for part in unit)
    return list(range(0, len(job.units), max(1, -(-total // TRAINED_ON))))


def _texts(job: Job, meter: Meter) -> Iterator[str]:
    for unit in chosen_units(job):
        for _, document in chosen_documents(job, unit, partial(meter.read, unit)):
            if document.text and not document.broken:
                raw = document.text.encode(errors="replace")
                if not is_validation(raw, job.validation_fraction):
                    yield from CUTS.pieces(text := raw.decode()) or [text]
        meter.advance(sum(part.weight for part in job.units[unit]), unit=unit)

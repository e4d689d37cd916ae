"""A preparation from its options to the token folder, new or continued."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence, Sized
from dataclasses import replace

from rich.console import Console

from jaxpar.config.errors import UserError
from jaxpar.config.parts import ANSWERS_FORMATS, LABELS_FORMAT, PAIRS_FORMAT, objectives_of
from jaxpar.config.paths import flush_folder
from jaxpar.config.reading.text_file import read_file
from jaxpar.config.spelling import printable, quoted
from jaxpar.data.chat.encoding import ChatEncoder
from jaxpar.data.chat.template import CHAT
from jaxpar.data.prepare.conversations import check_template, lengths_text, template_of
from jaxpar.data.prepare.input.documents import check_text_key
from jaxpar.data.prepare.input.files import find_inputs
from jaxpar.data.prepare.input.units import plan_units
from jaxpar.data.prepare.job import WORK, Job
from jaxpar.data.prepare.options import CHAT_FORMATS, Options
from jaxpar.data.prepare.output.atomic_files import TEMPORARY, folder_lock, write_file
from jaxpar.data.prepare.output.shards import ShardPlan, plan_shards, read_shard, remove_units, shard_maker
from jaxpar.data.prepare.output.tokenize import (
    UnitRecord,
    evaluation_tokens,
    has_expected_sizes,
    invalid_documents,
    read_record,
    unit_maker,
)
from jaxpar.data.prepare.progress import metering
from jaxpar.data.prepare.record import begin_or_resume, check_usable
from jaxpar.data.prepare.selection.screening import choose_documents
from jaxpar.data.prepare.train_bpe import chosen_units, train_bpe
from jaxpar.data.prepare.workers import run_tasks
from jaxpar.data.tokens.digests import digest, file_digest
from jaxpar.data.tokens.text_codec import tokens_before
from jaxpar.data.tokens.token_folder import TokenFolder, open_token_folder
from jaxpar.data.tokens.token_index import (
    INDEX,
    SPLITS,
    TRAIN,
    VALIDATION,
    VERSION,
    VERSION_OF,
    File,
    Index,
    Shard,
    encode,
)
from jaxpar.data.tokens.tokenizer_file import TOKENIZER, end_of_document, load_tokenizer, vocabulary_size
from jaxpar.pages.units import plural, rate, seconds, size

_SHOWN_PLACES = 3
"""Most broken documents that a message names."""
LEFT_OUT = {
    "contaminated": "with an n-gram of an evaluation", "drop": "by --drop", "duplicate": "duplicates",
    "filter": "by --filter", "keep": "without --keep",
}  # fmt: skip
"""Words for the reasons why documents are left out."""


def prepare(options: Options, console: Console) -> TokenFolder:
    """Make the token folder of `options`, or continue it; returns it opened and checked.

    Raises:
        UserError: one sentence about what is wrong with the options, the input or the output folder.
    """
    options.check()
    try:
        return _prepare(options, console)
    except OSError as error:
        raise UserError(
            f"--out {quoted(str(options.out))}: {error.filename or options.out} cannot be written "
            f"({error.strerror or error}); the same command continues once it can be"
        ) from error


def _prepare(options: Options, console: Console) -> TokenFolder:
    inputs = find_inputs(options.inputs, options.format, options.out)
    tokenizer = chat = None
    before: list[int] = []
    if options.tokenizer is not None:
        loaded = load_tokenizer(options.tokenizer, f"--tokenizer {quoted(str(options.tokenizer))}")
        end_of_document(loaded, options.separator)
        tokenizer = read_file(options.tokenizer)
        if options.format in CHAT_FORMATS:
            chat = template_of(options, options.tokenizer)
            chosen = options.chat_template is not None
            check_template(ChatEncoder(chat, loaded), chosen, lambda words: _print(console, words))
        else:
            before = tokens_before(loaded)
    units = plan_units(inputs, options.unit_bytes, options.text_key)
    if options.max_broken == 0:
        check_text_key(inputs, options.text_key)
    check_usable(options.out)
    work = options.out / WORK
    work.mkdir(parents=True, exist_ok=True)
    with folder_lock(options.out, work / "lock"):
        try:
            digests = [None if content is None else digest(content) for content in (tokenizer, chat and chat.encode())]
            begin_or_resume(options, inputs, options.decisive(*digests, before=before))
            if (options.out / INDEX).exists():
                _print(console, f"{options.out} is prepared already; nothing was changed.")
            else:
                job = Job(
                    out=options.out,
                    inputs=inputs,
                    units=units,
                    text_key=options.text_key,
                    validation_fraction=options.validation_fraction,
                    max_expansion=options.max_expansion,
                    tokenizer=options.out / TOKENIZER,
                    vocab=0,
                    separator=0,
                    chat=chat,
                    choice=options.choice,
                    answers=options.format if options.format in ANSWERS_FORMATS else None,
                )
                _Preparation(options, job, console).run(tokenizer)
        finally:
            if (options.out / INDEX).exists():
                shutil.rmtree(work)
    return open_token_folder(options.out, key="--out")


class _Preparation:
    """One run of the command: its work and its messages."""

    def __init__(self, options: Options, job: Job, console: Console) -> None:
        self.options, self.job, self.console = options, job, console
        self.began = time.monotonic()
        self.left_out: dict[str, int] = {}
        """Documents left out, by the option."""

    def run(self, tokenizer: bytes | None) -> None:
        job = self.job
        for leftover in (*job.out.glob(f"*{TEMPORARY}"), *job.work.rglob(f"*{TEMPORARY}")):
            leftover.unlink(missing_ok=True)
        job.unit_folder.mkdir(exist_ok=True)
        job.shard_folder.mkdir(exist_ok=True)
        total = size(sum(file.bytes for file in job.inputs))
        _print(self.console, f"{_count(job.inputs, 'file')}, {total}, in {_count(job.units, 'unit')} of work")
        self._warn_of_idle_processes()
        self.left_out = choose_documents(job, self.options.processes, self.console)
        self._provide_tokenizer(tokenizer)
        self._warn_of_short_texts()
        loaded = load_tokenizer(job.tokenizer, str(job.tokenizer))
        self.job = replace(
            job, vocab=vocabulary_size(loaded), separator=end_of_document(loaded, self.options.separator)
        )
        records = self._units()
        shards = self._shards(records)
        self._finish(records, shards)

    def _warn_of_idle_processes(self) -> None:
        job, processes = self.job, self.options.processes
        if len(job.units) < processes and any(file.compression for file in job.inputs):
            _print(
                self.console,
                f"Only {len(job.units)} of {processes} processes have work, because a compressed file is not divided; "
                "more or uncompressed files would use them all.",
            )

    def _warn_of_short_texts(self) -> None:
        ngram, lengths = self.job.choice.ngram, [len(text) for text in evaluation_tokens(self.job)]
        if short := sum(length < ngram for length in lengths):
            _print(
                self.console,
                f"--decontaminate: {short:,} of {plural(len(lengths), 'text')} are shorter than "
                f"{plural(ngram, 'token')} and are not looked for; a smaller --ngram finds more",
            )

    def _provide_tokenizer(self, tokenizer: bytes | None) -> None:
        job, vocab = self.job, self.options.train_bpe
        if job.tokenizer.exists():
            return
        if tokenizer is not None:
            write_file(job.tokenizer, tokenizer)
            return
        assert vocab is not None, "options were checked"
        total = sum(part.weight for unit in chosen_units(job) for part in job.units[unit])
        with metering(self.console, "training the tokenizer", total) as meter:
            trained = train_bpe(job, vocab, self.options.separator, self.options.special_tokens, meter)
        less = "" if trained == vocab else f" of the {vocab:,} that were asked for: the text has no more pairs to merge"
        _print(self.console, f"Trained a byte-level BPE with {plural(trained, 'token')}{less}")

    def _units(self) -> list[UnitRecord]:
        """Make the unfinished units; returns the records of all."""
        job = self.job
        weights = [sum(part.weight for part in unit) for unit in job.units]
        records = {index: record for index in range(len(weights)) if (record := read_record(job, index))}
        if not any(job.shard_folder.iterdir()):  # Otherwise all units were made, and shards delete their files.
            records = {index: record for index, record in records.items() if has_expected_sizes(job, index, record)}
        missing = [index for index in range(len(weights)) if index not in records]
        if records:
            _print(self.console, f"{_count(records, 'unit')} finished before")
        self._check_broken(records)
        done = sum(weights[index] for index in records)
        tokens = 0
        with metering(self.console, "tokenizing", sum(weights), done) as meter:
            during = lambda read: meter.read(*read)
            for index, record in run_tasks(unit_maker, job, missing, self.options.processes, during):
                records[index] = record
                if record.broken:
                    self._check_broken(records)
                tokens += sum(part.tokens for part in record.splits.values())
                rate = tokens / max(time.monotonic() - self.began, 1e-9)
                meter.advance(weights[index], f"{plural(tokens, 'token')}, {rate:,.0f} a second", index)
        return [records[index] for index in range(len(weights))]

    def _check_broken(self, records: dict[int, UnitRecord]) -> None:
        broken = sum(record.broken for record in records.values())
        if broken > self.options.max_broken:
            documents = "document is" if broken == 1 else "documents are"
            raise UserError(
                f"{broken} {documents} broken, and --max-broken is {self.options.max_broken}: "
                f"{self._first_broken(records)}; repair the input for another --out, or give the same command with a "
                "higher --max-broken to continue without them"
            )

    def _first_broken(self, records: dict[int, UnitRecord]) -> str:
        places: list[str] = []
        for unit in sorted(records):
            if len(places) <= _SHOWN_PLACES:
                places += invalid_documents(self.job, records[unit])
        return ", ".join(places[:_SHOWN_PLACES]) + (", ..." if len(places) > _SHOWN_PLACES else "")

    def _shards(self, records: Sequence[UnitRecord]) -> dict[str, dict[str, Shard]]:
        job = self.job
        if contaminated := sum(record.contaminated for record in records):
            self.left_out["contaminated"] = contaminated
        if not any(TRAIN in record.splits for record in records):
            raise UserError(
                f"{_count(job.inputs, 'file')} with no document to train on: {self._left_out_text()}"
                f"{sum(record.empty for record in records)} are empty, {sum(record.broken for record in records)} "
                f"broken, {sum(part.documents for record in records for part in record.splits.values())} for validation"
            )
        plans = plan_shards(records, self.options.shard_tokens)
        shards = {plan: shard for plan in plans if (shard := read_shard(job, plan))}
        missing = [plan for plan in plans if plan not in shards]
        with metering(self.console, "writing shards", len(plans), len(shards)) as meter:
            for plan, shard in run_tasks(shard_maker, job, missing, min(self.options.processes, max(1, len(missing)))):
                shards[plan] = shard
                remove_units(job, plan)
                meter.advance(1)
        for plan in shards:
            remove_units(job, plan)
        return {split: _named(shards, split) for split in SPLITS}

    def _finish(self, records: Sequence[UnitRecord], shards: dict[str, dict[str, Shard]]) -> None:
        job = self.job
        index = Index(
            dtype="uint16" if job.dtype == "uint16" else "uint32",
            vocab=job.vocab,
            separator=job.separator,
            tokenizer=File(TOKENIZER, job.tokenizer.stat().st_size, file_digest(job.tokenizer)),
            splits=shards,
            skipped={
                "empty": sum(record.empty for record in records),
                "broken": sum(record.broken for record in records),
                **self.left_out,
            },
            chat=self._chat_file(),
            paired=job.answers == PAIRS_FORMAT,
            labelled=job.answers == LABELS_FORMAT,
            version=VERSION if job.chat is None else VERSION_OF[job.answers],
        )
        flush_folder(job.out)
        write_file(job.out / INDEX, encode(index))
        flush_folder(job.out)
        self._report(index, records)

    def _left_out_text(self) -> str:
        return "".join(f"{count:,} {LEFT_OUT[reason]}, " for reason, count in sorted(self.left_out.items()))

    def _chat_file(self) -> File | None:
        """The file of the template of conversations, written; None for text."""
        if self.job.chat is None:
            return None
        content = self.job.chat.encode()
        write_file(self.job.out / CHAT, content)
        return File(CHAT, len(content), digest(content))

    def _report(self, index: Index, records: Sequence[UnitRecord]) -> None:
        for split, what in ((TRAIN, "to train on"), (VALIDATION, "for validation")):
            tokens, text = index.tokens_in(split), index.text_bytes_in(split)
            per_token = f", {text / tokens:.2f} bytes of text per token" if tokens else ""
            if self.job.chat is not None and tokens:
                counted = sum(record.splits[split].counted for record in records if split in record.splits)
                per_token = f", {counted:,} of them {'counted' if self.job.answers else "the assistant's"}"
            documents = index.documents_in(split)
            units = plural(documents // 2, "pair") if index.paired else plural(documents, "document")
            _print(self.console, f"{plural(tokens, 'token')} in {units} {what}{per_token}")
        if self.job.chat is not None:
            _print(self.console, lengths_text(self.job.out, index))
        if self.options.validation_fraction and not index.tokens_in(VALIDATION):
            _print(
                self.console,
                f"No document fell into --validation-fraction {self.options.validation_fraction:g}, so a run cannot "
                "evaluate; a larger one for another --out leaves some to evaluate on.",
            )
        if self.left_out:
            _print(self.console, f"Left out: {self._left_out_text().removesuffix(', ')}")
        if index.skipped["empty"]:
            _print(
                self.console,
                plural(index.skipped["empty"], "empty document was left out", "empty documents were left out"),
            )
        if index.skipped["broken"]:
            where = self._first_broken(dict(enumerate(records)))
            broken = plural(index.skipped["broken"], "broken document was left out", "broken documents were left out")
            _print(self.console, f"{broken}: {where}")
        took = time.monotonic() - self.began
        text = sum(index.text_bytes_in(split) for split in SPLITS)
        _print(self.console, f"{size(text)} of text in {seconds(took)}, {rate(text / took)}")
        _print(
            self.console,
            f"Train on it: python -m jaxpar.train --config FILE --set data.source=tokens --set data.path={self.job.out}"
            + ("" if self.job.chat is None else " --set run.init_from=MODEL")
            + (f" --set loss.name={objectives_of(self.job.answers)[0]}" if self.job.answers else ""),
        )


def _named(shards: dict[ShardPlan, Shard], split: str) -> dict[str, Shard]:
    return {plan.name: shard for plan, shard in shards.items() if plan.split == split}


def _count(things: Sized, what: str) -> str:
    return f"{len(things):,} {what}{'' if len(things) == 1 else 's'}"


def _print(console: Console, text: str) -> None:
    console.print(printable(text), soft_wrap=True, markup=False, highlight=False)

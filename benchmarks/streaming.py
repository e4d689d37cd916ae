"""`data.source: stream` beside a prepared folder: tokens per second, and how long a step waits for its batch.

    python -m benchmarks.streaming --steps 250

The documents are those of `benchmarks.prepare`, as JSON lines, Parquet and Arrow; `prepare` trains the tokenizer and
makes the folder. Each source is read by the loader as in a run: as fast as it goes, and then by steps that last twice
as long (`sleep` stands for the devices), where the waits of all steps after the first `SKIPPED` are timed. Processor
seconds are those of the processes that tokenize too, and other work on the machine changes them less.
"""

from __future__ import annotations

import gzip
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from benchmarks.prepare import write_documents
from jaxpar.cli import Parser, command
from jaxpar.config import DataConfig
from jaxpar.data import Batch, Data, batches, open_data
from jaxpar.data.streaming.rows import StreamRows

BATCH, LENGTH = 16, 1024
SOURCES = ("tokens", "a.jsonl", "a.parquet", "a.arrow", "a.jsonl.gz")
SKIPPED = 100
"""Steps that are not timed: the first blocks of all lanes are made at once."""


@command()
def main(arguments: Sequence[str]) -> None:
    """Command line; the exit code is 2 for a user error."""
    parser = Parser("benchmarks.streaming", __doc__)
    parser.add_argument("--steps", type=int, default=250, help="steps of each measurement")
    parser.add_argument("--workers", type=int, default=max(1, len(os.sched_getaffinity(0)) - 1))
    parser.add_argument("--megabytes", type=int, default=48, help="text, at most")
    parser.add_argument("--vocab", type=int, default=16384)
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=SOURCES)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = write_documents(folder / "a.jsonl", options.megabytes * 10**6)
        trained = ["--train-bpe", str(options.vocab), "--out", str(folder / "tokens")]
        prepare = [sys.executable, "-m", "jaxpar.prepare", "--input", str(folder / "a.jsonl"), *trained]
        subprocess.run(prepare, stdout=subprocess.DEVNULL, check=True)
        _write_others(folder)
        print(f"{size / 1e6:.1f} MB of text, {options.workers} processes, batches of {BATCH} x {LENGTH} tokens")
        print(f"{'':<12}{'first batch s':>14}{'tokens/s':>12}{'a processor':>12}{'median wait ms':>16}{'99%':>8}")
        for source in options.sources:
            print(_measured(folder, source, options.workers, options.steps), flush=True)


def _write_others(folder: Path) -> None:
    import pyarrow as arrow
    from pyarrow import json, parquet

    table = json.read_json(folder / "a.jsonl", json.ReadOptions(block_size=2**26))
    parquet.write_table(table, folder / "a.parquet", row_group_size=1000, compression="zstd")
    with arrow.OSFile(str(folder / "a.arrow"), "wb") as file, arrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)
    (folder / "a.jsonl.gz").write_bytes(gzip.compress((folder / "a.jsonl").read_bytes()))


def _measured(folder: Path, source: str, workers: int, steps: int) -> str:
    used, began = _processor_seconds(), time.perf_counter()
    data = _opened(folder, source, workers)
    fast = _batches(data)
    next(fast)
    first = time.perf_counter() - began
    for _ in range(steps):
        next(fast)
    rate = BATCH * LENGTH * steps / (time.perf_counter() - began - first)
    if isinstance(data.train, StreamRows):
        data.train.workers.close()
    of_processor = BATCH * LENGTH * (steps + 1) / (_processor_seconds() - used)
    del fast, data
    paced, waits = _batches(_opened(folder, source, workers)), []
    for _ in range(steps):
        began = time.perf_counter()
        next(paced)
        waits.append(1000 * (time.perf_counter() - began))
        time.sleep(2 * BATCH * LENGTH / rate)
    median, most = np.percentile(waits[SKIPPED:], [50, 99])
    return f"{source:<12}{first:>14.1f}{rate:>12,.0f}{of_processor:>12,.0f}{median:>16.2f}{most:>8.1f}"


def _processor_seconds() -> float:
    """Processor seconds of this process, and of those that it waited for."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def _opened(folder: Path, source: str, workers: int) -> Data:
    config = DataConfig(source="tokens", path=str(folder / source), sequence_length=LENGTH, batch_size=BATCH)
    if source != "tokens":
        tokenizer = str(folder / "tokens")
        config = DataConfig(
            source="stream",
            path=str(folder / source),
            tokenizer=tokenizer,
            workers=workers,
            sequence_length=LENGTH,
            batch_size=BATCH,
        )
    return open_data(config, vocab=None, seed=0)


def _batches(data: Data) -> Iterator[Batch]:
    return islice(batches(data.train, batch=lambda number: (number * BATCH, range(BATCH))), 10**9)


if __name__ == "__main__":
    sys.exit(main())

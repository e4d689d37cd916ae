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
from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.prepare import write_documents
from jaxpar.cli import Parser, command
from jaxpar.config import DataConfig
from jaxpar.data import Batch, Data, batches, open_data
from jaxpar.data.streaming.rows import StreamRows

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
    parser.add_argument("--batch", type=int, default=16, help="rows of a batch")
    parser.add_argument("--length", type=int, default=1024, help="tokens of a row")
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=SOURCES)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = write_documents(folder / "a.jsonl", options.megabytes * 10**6)
        trained = ["--train-bpe", str(options.vocab), "--out", str(folder / "tokens")]
        prepare = [sys.executable, "-m", "jaxpar.prepare", "--input", str(folder / "a.jsonl"), *trained]
        subprocess.run(prepare, stdout=subprocess.DEVNULL, check=True)
        _write_others(folder)
        batch = f"batches of {options.batch} x {options.length} tokens"
        print(f"{size / 1e6:.1f} MB of text, {options.workers} processes, {batch}")
        print(f"{'':<12}{'first batch s':>14}{'tokens/s':>12}{'a processor':>12}{'median wait ms':>16}{'99%':>8}")
        for source in options.sources:
            print(_measured(folder / source, options), flush=True)


def _write_others(folder: Path) -> None:
    import pyarrow as arrow
    from pyarrow import json, parquet

    table = json.read_json(folder / "a.jsonl", json.ReadOptions(block_size=2**26))
    parquet.write_table(table, folder / "a.parquet", row_group_size=1000, compression="zstd")
    with arrow.OSFile(str(folder / "a.arrow"), "wb") as file, arrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)
    (folder / "a.jsonl.gz").write_bytes(gzip.compress((folder / "a.jsonl").read_bytes()))


def _measured(path: Path, options: Namespace) -> str:
    steps, tokens = options.steps, options.batch * options.length
    used, began = _processor_seconds(), time.perf_counter()
    data = _opened(path, options)
    fast = _batches(data, options.batch)
    next(fast)
    first = time.perf_counter() - began
    for _ in range(steps):
        next(fast)
    rate = tokens * steps / (time.perf_counter() - began - first)
    if isinstance(data.train, StreamRows):
        data.train.workers.close()
    of_processor = tokens * (steps + 1) / (_processor_seconds() - used)
    del fast, data
    paced, waits = _batches(_opened(path, options), options.batch), []
    for _ in range(steps):
        began = time.perf_counter()
        next(paced)
        waits.append(1000 * (time.perf_counter() - began))
        time.sleep(2 * tokens / rate)
    median, most = np.percentile(waits[SKIPPED:], [50, 99])
    return f"{path.name:<12}{first:>14.1f}{rate:>12,.0f}{of_processor:>12,.0f}{median:>16.2f}{most:>8.1f}"


def _processor_seconds() -> float:
    """Processor seconds of this process, and of those that it waited for."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def _opened(path: Path, options: Namespace) -> Data:
    stream: dict[str, Any] = {"tokenizer": str(path.with_name("tokens")), "workers": options.workers}
    source: dict[str, Any] = {"source": "tokens"} if path.name == "tokens" else {"source": "stream", **stream}
    sizes: dict[str, Any] = {"sequence_length": options.length, "batch_size": options.batch}
    return open_data(DataConfig(path=str(path), **source, **sizes), vocab=None, seed=0)


def _batches(data: Data, rows: int) -> Iterator[Batch]:
    return islice(batches(data.train, batch=lambda number: (number * rows, range(rows))), 10**9)


if __name__ == "__main__":
    sys.exit(main())

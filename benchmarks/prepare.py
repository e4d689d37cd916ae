"""`python -m jaxpar.prepare` and the tokenizer library's own `encode_batch`, side by side on the same documents.

    python -m benchmarks.prepare --rounds 3

The documents are the sources of Python's standard library and of the packages that are installed beside it, as JSON
lines; the tokenizer is a byte-level BPE trained on them. In turn, `--rounds` times, each in a process of its own:

- the library: `encode_batch` of all documents, which are in memory already, with as many threads as `--processes`;
- jaxpar: the whole command, from its start to the finished folder: reading, splitting, encoding, writing, checking.

It prints wall times, CPU times (which other work on the machine changes less), and the ratios of the medians: above 1
the command is faster.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from jaxpar.cli import Parser, command

LIBRARY = """
import json, os, sys, time
os.environ["TOKENIZERS_PARALLELISM"] = "true"
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[2])
texts = [json.loads(line)["text"] for line in open(sys.argv[1], "rb")]
began, used = time.perf_counter(), time.process_time()
encoded = getattr(tokenizer, sys.argv[3])(texts, add_special_tokens=False)
print(time.perf_counter() - began, time.process_time() - used, sum(len(each.ids) for each in encoded))
"""
"""Times the call alone."""


@command()
def main(arguments: Sequence[str]) -> None:
    """Command line; the exit code is 2 for a user error."""
    parser = Parser("benchmarks.prepare", __doc__)
    parser.add_argument("--rounds", type=int, default=3, help="turns that each side gets")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--megabytes", type=int, default=48, help="text to encode, at most")
    parser.add_argument("--vocab", type=int, default=16384)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        source, tokenizer = Path(folder) / "a.jsonl", Path(folder) / "first" / "tokenizer.json"
        size = write_documents(source, options.megabytes * 10**6)
        trained = ["--train-bpe", str(options.vocab), "--processes", str(options.processes)]
        _prepare(source, tokenizer.parent, trained)
        sides = {"encode_batch": [], "encode_batch_fast": [], "prepare": []}
        for turn in range(options.rounds):
            for side in ("encode_batch", "encode_batch_fast"):
                sides[side].append(_library(source, tokenizer, side, options.processes))
            given = ["--tokenizer", str(tokenizer), "--processes", str(options.processes)]
            sides["prepare"].append(_prepare(source, Path(folder) / str(turn), given))
    print(table(sides, size, options.processes))


def table(sides: dict[str, list[tuple[float, float]]], size: int, processes: int) -> str:
    """The medians of (seconds, processor seconds) for people."""
    lines = [f"{size / 1e6:.1f} MB of text, {processes} processes or threads, medians of {len(sides['prepare'])}", ""]
    lines.append(f"{'':<22}{'seconds':>9}{'MB/s':>8}{'processor s':>13}{'prepare is':>14}{'by processor':>14}")
    medians = {side: [statistics.median(part) for part in zip(*runs, strict=True)] for side, runs in sides.items()}
    for side, (seconds, used) in medians.items():
        ratios = [theirs / ours for theirs, ours in zip((seconds, used), medians["prepare"], strict=True)]
        columns = "".join(f"{f'{ratio:.2f} x':>14}" for ratio in ratios) if side != "prepare" else ""
        lines.append(f"{side:<22}{seconds:>9.2f}{size / 1e6 / seconds:>8.2f}{used:>13.2f}{columns}")
    return "\n".join(lines)


def write_documents(path: Path, most: int) -> int:
    """The documents as JSON lines; the bytes of text in them."""
    size = 0
    with path.open("w") as file:
        for root in (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")):
            for source in sorted(Path(root).rglob("*.py")):
                text = source.read_text(encoding="utf-8", errors="replace")
                if size + len(text.encode()) <= most:
                    size += len(text.encode())
                    file.write(json.dumps({"text": text}) + "\n")
    return size


def _library(source: Path, tokenizer: Path, call: str, threads: int) -> tuple[float, float]:
    done = subprocess.run(
        [sys.executable, "-c", LIBRARY, str(source), str(tokenizer), call],
        env={**os.environ, "RAYON_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, used, _ = map(float, done.stdout.split())
    return seconds, used


def _prepare(source: Path, out: Path, more: list[str]) -> tuple[float, float]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    command = [sys.executable, "-m", "jaxpar.prepare", "--input", str(source), "--out", str(out), *more]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    sys.exit(main())

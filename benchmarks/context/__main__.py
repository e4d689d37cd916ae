"""Context strategies on virtual CPU devices: time, memory and balance of one layer's attention, by length.

    python -m benchmarks.context                                      # a causal row over 8 devices
    python -m benchmarks.context --documents 1024 --orders contiguous zigzag striped
    python -m benchmarks.context --gpu                                # tiled loss and MLP at 128k tokens, on one GPU

This compares what the strategies' programs compute, hold and send; it is not the speed of GPUs. A program is output and
gradients of one layer's attention, in float32, block by block. The programs of a length take turns, round after round;
times are medians over the rounds. CPU time adds up all devices, so its ratio to attention on one device is the cost of
splitting. Virtual devices share the machine's cores, so the savings of balance show on real devices only (`busiest` is
the rank with the most pairs, relative to the mean). Memory is what XLA allocates on one device, without arguments. Sent
bytes are the formulas of the strategies, which tests compare with programs for GPUs.

With --gpu it measures the training step of a configuration on one GPU, with rows of each length, with and without tiles
of the loss and of the MLP, each in a process of its own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.context.tiles import measure_tiles, tiles_table
from benchmarks.cpu_devices import one_thread_devices
from benchmarks.results import add_json_file, write_json
from jaxpar.attention.balance import ORDERS
from jaxpar.cli import Parser, command
from jaxpar.pages.units import MIB, seconds

LENGTHS = (2048, 4096, 8192, 16384)
GPU_LENGTHS = (32768, 65536, 131072)


@command()
def main(arguments: Sequence[str]) -> None:
    """Command line; the exit code is 2 for a user error."""
    parser = Parser("benchmarks.context", __doc__)
    parser.add_argument("--lengths", nargs="*", type=int, help=f"tokens of a row (default: {_listed(LENGTHS)}; "
                        f"with --gpu {_listed(GPU_LENGTHS)})")  # fmt: skip
    parser.add_argument("--context", type=int, default=8, help="ranks of a row, each a virtual device")
    parser.add_argument("--orders", nargs="*", choices=("auto", *ORDERS), default=["auto"],
                        help="of the sequence (default: what each strategy takes by itself)")  # fmt: skip
    parser.add_argument("--window", type=int, help="tokens that a token sees, itself included")
    parser.add_argument("--documents", type=int, help="mean tokens of documents that share a row")
    parser.add_argument("--rounds", type=int, default=3, help="turns that each program gets")
    parser.add_argument("--gpu", action="store_true", help="a whole step with tiled loss and MLP, on one GPU")
    parser.add_argument("--config", default="configs/llama3_1b.yaml", help="with --gpu: the model")
    parser.add_argument("--steps", type=int, default=5, help="with --gpu: steps that are timed")
    add_json_file(parser)
    options = parser.parse_args(arguments)
    result, shown = _on_gpu(options) if options.gpu else _on_cpu(options)
    write_json(options.json, result)
    print(shown)


def _on_gpu(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    result = measure_tiles(options.config, options.lengths or GPU_LENGTHS, steps=options.steps)
    return result, tiles_table(result)


def _on_cpu(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    one_thread_devices(options.context)
    from benchmarks.context.strategies import Sizes, measure  # imports JAX, which reads the number of devices once

    sizes = Sizes(options.context, window=options.window, documents=options.documents)
    result = measure(sizes, options.lengths or LENGTHS, options.orders, rounds=options.rounds)
    return result, table(result)


def table(result: Mapping[str, Any]) -> str:
    """The results for people."""
    machine, sizes = result["machine"], result["sizes"]
    seen = "causal" + (f", a window of {sizes['window']}" if sizes["window"] else "")
    seen += f", documents of {sizes['documents']} tokens in the mean" if sizes["documents"] else ""
    lines = [
        f"Virtual CPU devices: {machine['cores']} cores of {machine['processor']}, load {machine['load'][0]:.1f} "
        f"({machine['load_before'][0]:.1f} at the start). Cost of programs, not the speed of GPUs.",
        f"context {sizes['context']}, {sizes['heads']} query and {sizes['kv_heads']} KV heads of {sizes['head_dim']}, "
        f"blocks of {sizes['block']}, {seen}; {result['rounds']} rounds, {seconds(result['seconds'])} in all",
        "",
        f"{'tokens':>8}  {'strategy':12}{'order':12}{'wall s':>8}{'lowest':>8}{'highest':>8}"
        f"{'processor s':>13}{'ratio':>7}{'memory MiB':>12}{'sent MiB':>10}{'busiest':>9}",
    ]
    lines += [_row(row) for row in result["rows"]]
    return "\n".join(lines)


def _row(row: Mapping[str, Any]) -> str:
    named = f"{row['length']:8}  {row['strategy']:12}"
    if "refused" in row:
        return f"{named}refused: {row['refused']}"
    wall, mib = row["wall_s"], MIB
    group = f" {row['ulysses']}" if row["strategy"] == "usp" else ""
    text = f"{row['length']:8}  {row['strategy'] + group:12}{row['order']:12}{wall['median']:8.3f}{wall['lowest']:8.3f}"
    text += f"{wall['highest']:8.3f}{row['processor_s']['median']:13.3f}{row['processor_ratio']:7.2f}"
    text += f"{row['temporary_bytes'] / mib:12.2f}"
    if "sent_bytes" not in row:
        return text
    return f"{text}{sum(row['sent_bytes'].values()) / mib:10.2f}{f'+{row["imbalance"]:.0%}':>9}"


def _listed(lengths: Sequence[int]) -> str:
    return " ".join(map(str, lengths))


if __name__ == "__main__":
    sys.exit(main())

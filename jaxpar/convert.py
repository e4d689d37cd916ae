"""`python -m jaxpar.convert hf-to-jaxpar MODEL OUT`, `jaxpar-to-hf MODEL OUT`: from and to Hugging Face's format;
`factorize MODEL OUT`: matrices as products of two; `upcycle MODEL OUT`: a dense model as one with experts; `linearize
MODEL OUT`: attention as gated linear attention and windows."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpar.cli import Parser, command, positive, without_gpus
from jaxpar.config import UserError
from jaxpar.config.spelling import named, quoted
from jaxpar.pages.units import parse_file_size, plural
from jaxpar.remote.cache import source_url

if TYPE_CHECKING:
    from jaxpar.interop.sources.open_source import Model

INTO, BACK, FACTORIZE, UPCYCLE, LINEARIZE = "hf-to-jaxpar", "jaxpar-to-hf", "factorize", "upcycle", "linearize"
OPTIONS = {
    "dtype": (BACK,), "format": (BACK,), "shard_size": (BACK,), "adapter": (BACK,), "check": (INTO, BACK),
    "rank": (FACTORIZE,), "share": (FACTORIZE,), "solver": (FACTORIZE,),
    "experts": (UPCYCLE,), "granularity": (UPCYCLE,), "per_token": (UPCYCLE,),
    "window": (LINEARIZE,),
}  # fmt: skip
"""The directions that take each option."""
LAST = ("checkpoints/*/manifest.json", "config.json", "adapter_config.json")
"""The files without which a folder is no model: uploaded last."""


@command()
def main(arguments: Sequence[str]) -> None:
    """Convert from the command line; the exit code: 0 done, 2 a user error."""
    options = _parser().parse_args(arguments)
    for option, directions in OPTIONS.items():
        if options.direction not in directions and getattr(options, option) not in (None, False):
            raise UserError(f"--{option.replace('_', '-')}: expected with {' or '.join(directions)} alone")
    for option in ("check", "shard_size", "format"):
        if options.adapter and getattr(options, option):
            raise UserError(f"--{option.replace('_', '-')}: expected without --adapter, which writes one small file")
    if options.check and options.format:
        raise UserError(f"--check: expected without --format {options.format}, which rounds every matrix")
    if (options.out is None) != options.check:
        raise UserError("OUT: expected a new folder, or --check, which writes nothing")
    without_gpus()
    directions = {
        INTO: _into_jaxpar, BACK: _into_hf, FACTORIZE: _factorize, UPCYCLE: _upcycle, LINEARIZE: _linearize
    }  # fmt: skip
    if options.out is None:
        directions[options.direction](options)
        return
    from jaxpar.remote.upload import folder_to_write

    with folder_to_write(options.out, "OUT", LAST, print) as out:
        if out != options.out:  # what an interrupted upload left is made again
            shutil.rmtree(out, ignore_errors=True)
        options.out = out
        directions[options.direction](options)


def _parser() -> Parser:
    parser = Parser(
        "jaxpar.convert",
        "Convert weights from and to Hugging Face's format, to low-rank matrices, to experts (docs/weights.md), and to "
        "linear attention (docs/spikingbrain.md).",
    )
    words = (
        f"{INTO}: to a checkpoint; {BACK}: to what transformers and vLLM load; {FACTORIZE}: to low-rank matrices; "
        f"{UPCYCLE}: to experts; {LINEARIZE}: to gated linear attention and windows"
    )
    parser.add_argument("direction", choices=(INTO, BACK, FACTORIZE, UPCYCLE, LINEARIZE), help=words)
    words = f"a folder in Hugging Face's format; or, but for {INTO}, a run, a checkpoint or a converted model"
    parser.add_argument("model", metavar="MODEL", help=words)
    parser.add_argument("out", metavar="OUT", nargs="?", type=Path, help="the new folder")
    parser.add_argument(
        "--check", action="store_true", help="round trip in memory, compared bit for bit; writes nothing"
    )
    words = f"of {BACK}: float32, bfloat16 or float16 (default: what the weights came in, or float32)"
    parser.add_argument("--dtype", help=words)
    words = (
        f"of {BACK}: compressed-tensors, 8-bit matrices with a scale each, as vLLM reads them (default: not quantized)"
    )
    parser.add_argument("--format", choices=("compressed-tensors",), help=words)
    words = f"of {BACK}: the largest file, as 500MB (default: 5GB)"
    parser.add_argument("--shard-size", metavar="SIZE", help=words)
    words = f"of {BACK}: export only the low-rank factors of a run, in PEFT's format (default: merged with the weights)"
    parser.add_argument("--adapter", action="store_true", help=words)
    words = f"of {FACTORIZE}: the rank of every product; or --share"
    parser.add_argument("--rank", metavar="N", type=positive, help=words)
    words = f"of {FACTORIZE}: maximum number of weights of the factors relative to the matrix, above 0 and below 1"
    parser.add_argument("--share", metavar="S", type=float, help=words)
    words = f"of {FACTORIZE}: svd, the nearest product; or random initial values, to train from scratch (default: svd)"
    parser.add_argument("--solver", choices=("svd", "random"), help=words)
    words = f"of {UPCYCLE}: copies of the feed-forward"
    parser.add_argument("--experts", metavar="N", type=positive, help=words)
    words = f"of {UPCYCLE}: slices of a copy's hidden width, each an expert (default: 1)"
    parser.add_argument("--granularity", metavar="G", type=positive, help=words)
    words = f"of {UPCYCLE}: experts per token (default: 2 x --granularity)"
    parser.add_argument("--per-token", metavar="K", type=positive, help=words)
    words = f"of {LINEARIZE}: tokens that odd layers see (default: 4096)"
    parser.add_argument("--window", metavar="W", type=positive, help=words)
    return parser


def _name(out: Path) -> str:
    """The new folder as the user wrote it, for messages."""
    return named(source_url(out))


def _into_jaxpar(options: argparse.Namespace) -> None:
    from jaxpar.interop.conversion.converted import write_checkpoint
    from jaxpar.interop.conversion.export import plan_export
    from jaxpar.interop.conversion.new_folder import new_folder
    from jaxpar.interop.conversion.round_trip import check_import
    from jaxpar.interop.sources.hf_folder import HFFolder
    from jaxpar.interop.sources.open_source import open_source

    source = open_source(options.model, "MODEL")
    if not isinstance(source, HFFolder):
        raise UserError(
            f"MODEL: {named(source.path)} is not a folder in Hugging Face's format but {source.description}"
        )
    export = plan_export(source)
    what = f"{source.family.name}, {plural(len(source.tensors), 'tensor')}, {export.parameters:,} weights"
    if options.check:
        check_import(source, export)
        print(f"{named(source.path)}: {what}: the same bits both ways")
        return
    with new_folder(options.out) as folder:
        write_checkpoint(source, folder, print)
    print("; ".join([f"{_name(options.out)}: {what}", *source.remarks]))


def _into_hf(options: argparse.Namespace) -> None:
    from jaxpar.interop.conversion.export import DTYPE_NAMES, plan_export
    from jaxpar.interop.conversion.new_folder import new_folder
    from jaxpar.interop.conversion.round_trip import check_export
    from jaxpar.interop.sources.open_source import open_source

    if options.dtype is not None and options.dtype not in DTYPE_NAMES:
        raise UserError(f"--dtype: {quoted(options.dtype)}; expected one of {', '.join(DTYPE_NAMES)}")
    try:
        shard_bytes = parse_file_size(options.shard_size or "5GB")
    except ValueError as error:
        raise UserError(f"--shard-size: {error}") from None
    source = open_source(options.model, "MODEL")
    if options.adapter:
        _into_peft(source, options)
        return
    export = plan_export(source, options.dtype, compressed=options.format is not None)
    dtypes = ", ".join(sorted({dtype.name for dtype in export.dtypes.values()}))
    what = f"{export.family.name}, {plural(len(export.tensors), 'tensor')}, {export.parameters:,} weights in {dtypes}"
    if export.quantized:
        what += f", {plural(len(export.quantized), 'tensor')} of them in 8 bits"
    if options.check:
        check_export(export)
        print(f"{named(export.source.path)}: {what}: the same bits both ways")
        return
    with new_folder(options.out) as folder:
        files = export.write(folder, shard_bytes)
    print(f"{_name(options.out)}: {what}, in {plural(len(files), 'file')}")
    if not any((options.out / name).exists() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        print("No tokenizer is known for this model: put its files beside the weights before the folder is used.")


def _factorize(options: argparse.Namespace) -> None:
    from jaxpar.interop.conversion.factorize import plan_factorization
    from jaxpar.interop.conversion.new_folder import new_folder
    from jaxpar.interop.sources.open_source import open_source

    if (options.rank is None) == (options.share is None):
        raise UserError("expected one of --rank N and --share S")
    if options.share is not None and not 0 < options.share < 1:
        raise UserError(f"--share: expected a number above 0 and below 1, got {options.share:g}")
    source = open_source(options.model, "MODEL")
    made = plan_factorization(source, options.rank, options.share, options.solver or "svd", print)
    with new_folder(options.out) as folder:
        made.write(folder, print)
    print(f"{_name(options.out)}: {made.weights:,} weights, where {named(source.path)} has {made.weights_before:,}")
    print(made.table())


def _upcycle(options: argparse.Namespace) -> None:
    from jaxpar.interop.conversion.new_folder import new_folder
    from jaxpar.interop.conversion.upcycle import plan_upcycling
    from jaxpar.interop.sources.open_source import open_source

    if options.experts is None:
        raise UserError(f"--experts: expected with {UPCYCLE}, the number of copies of the feed-forward")
    source = open_source(options.model, "MODEL")
    made = plan_upcycling(source, options.experts, options.granularity or 1, options.per_token)
    with new_folder(options.out) as folder:
        made.write(folder, print)
    experts = made.experts
    routed = f"{plural(experts.count, 'expert')}, {experts.per_token} per token"
    print(f"{_name(options.out)}: {routed}, {made.weights:,} weights")


def _linearize(options: argparse.Namespace) -> None:
    from jaxpar.interop.conversion.linearize import plan_linearization
    from jaxpar.interop.conversion.new_folder import new_folder
    from jaxpar.interop.sources.open_source import open_source

    source = open_source(options.model, "MODEL")
    made = plan_linearization(source, options.window or 4096)
    with new_folder(options.out) as folder:
        made.write(folder, print)
    linear = (made.model.layers + 1) // 2
    print(f"{_name(options.out)}: {linear} of {made.model.layers} layers with a state, {made.weights:,} weights")


def _into_peft(source: Model, options: argparse.Namespace) -> None:
    from jaxpar.interop.conversion.export import DTYPE_NAMES
    from jaxpar.interop.conversion.new_folder import new_folder
    from jaxpar.interop.conversion.peft import plan_adapter

    adapter = plan_adapter(source, DTYPE_NAMES[options.dtype or "float32"], print)
    with new_folder(options.out) as folder:
        adapter.write(folder)
    modules = f"{len(adapter.tensors)} modules ({', '.join(adapter.names)})"
    base = adapter.source.base.location
    print(f"{_name(options.out)}: factors of rank {adapter.source.rank} for {modules}, of {base}")


if __name__ == "__main__":
    sys.exit(main())

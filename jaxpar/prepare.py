"""`python -m jaxpar.prepare --input 'data/*.jsonl' --tokenizer tokenizer.json --out tokens/`: text to tokens."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpar.cli import Parser, command, positive
from jaxpar.config import UserError
from jaxpar.config.paths import is_name, user_location, user_path
from jaxpar.config.spelling import quoted
from jaxpar.remote.cache import local_path
from jaxpar.remote.upload import folder_to_write

if TYPE_CHECKING:
    from rich.console import Console

    from jaxpar.data.prepare import Options
    from jaxpar.data.prepare.choice import Choice

MOST_DOCUMENTS = 1_000_000
"""Most documents that `--inspect` shows."""

EPILOG = """\
The format follows from the name, also before .gz or .zst: .txt, .md and the like (a file is a document), .jsonl (a
line is a JSON object), .parquet (a row). Give the same command again after a kill, a full disk or a change of
--processes: it continues, and the resulting folder is the same, byte for byte. docs/data.md has more.
"""


@command("interrupted; the same command continues it")
def main(arguments: Sequence[str]) -> None:
    """Prepare from the command line; the exit code: 0 done, 2 a user error, 130 interrupted."""
    _prepare(_parser().parse_args(arguments))


def _parser() -> Parser:
    parser = Parser("jaxpar.prepare", "Turn text into a folder of tokens to train on, or look at one.", EPILOG)
    _add_tasks(parser.add_argument_group("what to make"))
    _add_settings(parser.add_argument_group("how"))
    _add_choice(parser.add_argument_group("documents to leave out"))
    _add_inspection(parser.add_argument_group("look at a folder of tokens instead"))
    return parser


def _add_tasks(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--input", metavar="PATTERN", nargs="+", action="extend", help="files, or patterns such as 'd/*.jsonl'"
    )
    group.add_argument("--out", metavar="FOLDER", type=Path, help="new or empty folder, or an unfinished one")
    group.add_argument(
        "--tokenizer", metavar="FILE", type=Path, help="tokenizer.json of Hugging Face's tokenizers, or its folder"
    )
    group.add_argument(
        "--train-bpe", metavar="VOCAB", type=int, help="train a byte-level BPE of that size on the input"
    )
    group.add_argument(
        "--special-tokens", metavar="TOKEN", nargs="+", action="extend", default=[],
        help="with --train-bpe: further special tokens, such as a chat template's '<|im_start|>' '<|im_end|>'",
    )  # fmt: skip
    group.add_argument(
        "--spans", metavar="FILE", type=Path,
        help="mark spans in the documents of --out, a finished folder of text: JSON lines with `text` and `spans`, a "
        "list of [begin, end, kind] in characters, for loss.name: masked",
    )  # fmt: skip
    group.add_argument(
        "--triples", metavar="FILE", type=Path,
        help="mark relations between spans in the documents of --out: JSON lines with `text` and `triples`, a list of "
        "[[begin, end], relation, [begin, end], hop], for loss.contrastive",
    )  # fmt: skip
    group.add_argument(
        "--clusters", metavar="K", type=int,
        help="put the documents of --out into K balanced clusters of similar ones, token folders cluster-0, cluster-1 "
        "and so on within it; with --input, once they are tokens (docs/paris.md)",
    )  # fmt: skip
    group.add_argument(
        "--cluster-by", metavar="MODEL",
        help="with --clusters: compare documents by the mean of this model's last hidden states (default: by their "
        "hashed n-grams)",
    )  # fmt: skip
    group.add_argument(
        "--cluster-seed", metavar="N", type=int, default=0, help="with --clusters: random seed (default: 0)"
    )


def _add_settings(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--text-key", "--column", metavar="NAME", default="text", help="key or column of the text (default: text)"
    )
    group.add_argument(
        "--format",
        choices=("text", "lines", "jsonl", "parquet", "chat", "preference", "labelled"),
        help="format of every file, whatever its name; lines: a line is a document; chat: JSON lines with `messages`, "
        "or `prompt` and `completion`, or ShareGPT's or Alpaca's, of which only the assistant's tokens are trained on; "
        "preference: JSON lines with `prompt`, `chosen` and `rejected`, for loss.name: dpo, simpo or orpo; "
        "labelled: JSON lines with `prompt`, `completion` and `label` (true or false), for loss.name: kto",
    )
    group.add_argument(
        "--chat-template",
        metavar="FILE|NAME|chatml",
        help="for --format chat, preference and labelled: a file, or one of the tokenizer's templates by name "
        "(default: the one beside the tokenizer)",
    )
    group.add_argument(
        "--validation-fraction", metavar="SHARE", type=float, default=0.005,
        help="share of the documents for validation, chosen by a hash of their text (default: 0.005)",
    )  # fmt: skip
    group.add_argument("--separator", metavar="TOKEN", help="token that ends a document (default: the tokenizer's)")
    group.add_argument(
        "--max-broken",
        metavar="N",
        type=int,
        default=0,
        help="maximum number of invalid documents to skip (default: 0)",
    )
    group.add_argument(
        "--max-expansion", metavar="N", type=int, default=100,
        help="maximum ratio of unpacked to compressed bytes of a file (default: 100)",
    )  # fmt: skip
    group.add_argument(
        "--processes", metavar="N", type=int, help="worker processes (default: the number of processors)"
    )
    group.add_argument(
        "--unit-bytes", metavar="N", type=int, help="input bytes per unit of work (default: by the input's size)"
    )
    group.add_argument("--shard-tokens", metavar="N", type=int, default=2**29, help="tokens in a shard (default: 2^29)")


def _add_choice(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--keep", metavar="PATTERN", nargs="+", action="extend", default=[],
        help="regular expressions: leave out documents without a match of each",
    )  # fmt: skip
    group.add_argument(
        "--drop", metavar="PATTERN", nargs="+", action="extend", default=[],
        help="regular expressions: leave out documents with a match of one",
    )  # fmt: skip
    group.add_argument(
        "--filter",
        metavar="FILE.py:NAME",
        help="a function of a document's text: leave out those for which it is False",
    )
    group.add_argument(
        "--dedup", choices=("exact", "minhash"),
        help="leave out documents that equal an earlier one, or have about 80%% of its sets of five words in common "
        "(minhash)",
    )  # fmt: skip
    group.add_argument(
        "--decontaminate", metavar="FILE", nargs="+", action="extend", default=[],
        help="files of tasks (docs/evaluation.md): leave out documents with an n-gram of one of their texts",
    )  # fmt: skip
    group.add_argument("--ngram", metavar="N", type=positive, help="with --decontaminate: tokens of it (default: 13)")


def _add_inspection(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--inspect", metavar="FOLDER", type=Path, help="show counts, lengths and decoded documents")
    group.add_argument(
        "--documents", metavar="N", type=int, default=3, help="documents that --inspect shows (default: 3)"
    )
    group.add_argument(
        "--verify", metavar="FOLDER", type=Path, help="verify the digests of all files of a token folder"
    )


def _check_asked(options: argparse.Namespace) -> None:
    """Refuse no task, several, and options of another one."""
    tasks = ("input", "spans", "triples", "inspect", "verify")
    asked = [name for name in tasks if getattr(options, name) is not None]
    if options.clusters is not None and not asked:
        asked = ["clusters"]
    if len(asked) != 1:
        raise UserError(
            "expected one of --input PATTERN --out FOLDER, --spans FILE --out FOLDER, --inspect FOLDER or --verify "
            "FOLDER, or of --triples FILE and --clusters K with --out FOLDER"
        )
    names = (
        "tokenizer",
        "train_bpe",
        "special_tokens", "keep", "drop", "filter", "dedup", "decontaminate",
        *(() if asked[0] in ("spans", "triples", "clusters") else ("out",)),
    )  # fmt: skip
    extra = [name for name in names if getattr(options, name)]
    if asked != ["input"] and extra:
        raise UserError(f"--{extra[0].replace('_', '-')} is for --input: expected --{asked[0]} FOLDER alone")
    if options.clusters is not None and asked[0] not in ("input", "clusters"):
        raise UserError(f"--clusters is for --out FOLDER: expected no --{asked[0]} with it")
    if options.cluster_by is not None and options.clusters is None:
        raise UserError("--cluster-by is for --clusters K: expected it too")
    if options.clusters is not None and options.clusters < 2:
        raise UserError(f"--clusters {options.clusters}: expected 2 or more")


def _prepare(options: argparse.Namespace) -> None:
    _check_asked(options)
    if not 0 <= options.documents <= MOST_DOCUMENTS:
        raise UserError(f"--documents {options.documents}: expected from 0 to {MOST_DOCUMENTS}")
    names = [("text-key", options.text_key), ("separator", options.separator or "")]
    for name, value in [*names, *(("special-tokens", token) for token in options.special_tokens)]:
        if not is_name(value):
            raise UserError(f"--{name} {quoted(value)} has a NUL or half of a surrogate pair; expected text in UTF-8")
    for pattern in options.input or ():
        user_location(pattern, "--input")
    from rich.console import Console

    from jaxpar.data.prepare import inspect_folder, verify_folder
    from jaxpar.data.tokens.token_index import INDEX

    # Without a terminal rich assumes 80 columns, too few for the table of counts.
    console = Console(markup=False) if sys.stdout.isatty() else Console(width=120, markup=False)
    if options.inspect is not None:
        inspect_folder(local_path(options.inspect, "--inspect"), console, options.documents)
    elif options.verify is not None:
        verify_folder(local_path(options.verify, "--verify"), console)
    elif options.out is None:
        raise UserError("--out is missing: expected the folder to make, or the finished one to add to")
    elif options.input is None:
        _write(options, user_path(options.out, "--out"), console)
    else:
        with folder_to_write(options.out, "--out", [INDEX], console.print) as out:
            _write(options, out, console)


def _write(options: argparse.Namespace, out: Path, console: Console) -> None:
    """Make a folder of tokens, or add to one."""
    from jaxpar.data.prepare import mark_spans, mark_triples, prepare

    if options.spans is not None:
        mark_spans(local_path(options.spans, "--spans"), out, console)
    if options.triples is not None:
        mark_triples(local_path(options.triples, "--triples"), out, console)
    if options.input is not None:
        prepare(_options(options, out), console)
    if options.clusters is not None:
        _cluster(options, out, console)


def _options(options: argparse.Namespace, out: Path) -> Options:
    from jaxpar.data.prepare import Options
    from jaxpar.data.tokens.tokenizer_file import tokenizer_path

    return Options(
        inputs=tuple(options.input),
        out=out,
        tokenizer=options.tokenizer and tokenizer_path(local_path(options.tokenizer, "--tokenizer")),
        train_bpe=options.train_bpe,
        special_tokens=tuple(options.special_tokens),
        text_key=options.text_key,
        format=options.format,
        chat_template=options.chat_template,
        validation_fraction=options.validation_fraction,
        separator=options.separator,
        choice=_choice(options),
        max_broken=options.max_broken,
        max_expansion=options.max_expansion,
        processes=len(os.sched_getaffinity(0)) if options.processes is None else options.processes,
        unit_bytes=options.unit_bytes,
        shard_tokens=options.shard_tokens,
    )


def _choice(options: argparse.Namespace) -> Choice:
    from jaxpar.data.prepare.choice import NGRAM, Choice
    from jaxpar.evaluation.task_file import read_tasks

    if options.ngram is not None and not options.decontaminate:
        raise UserError("--ngram is for --decontaminate FILE: expected it too")
    texts = [text for task in read_tasks(options.decontaminate, "--decontaminate") for text in task.texts]
    return Choice(
        keep=tuple(options.keep),
        drop=tuple(options.drop),
        filter=options.filter,
        dedup=options.dedup,
        decontaminate=tuple(texts),
        ngram=options.ngram or NGRAM,
    )


def _cluster(options: argparse.Namespace, out: Path, console: Console) -> None:
    from jaxpar.data.clusters.split import Clustering, cluster_folder

    embed = model = None
    if options.cluster_by is not None:
        from jaxpar.evaluation.embeddings import embeddings_of

        embed, model = embeddings_of(options.cluster_by, out)
    cluster_folder(out, Clustering(options.clusters, options.cluster_seed, embed, model), console)


if __name__ == "__main__":
    sys.exit(main())

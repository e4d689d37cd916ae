"""`python -m jaxpar.evaluate --model MODEL --tasks FILE|NAME ...`: how well a model does on texts and tasks."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpar.cli import Parser, command, positive, report, without_gpus
from jaxpar.config import UserError
from jaxpar.config.spelling import join_or, named, quoted
from jaxpar.config.strict_json import json_text, strict_json
from jaxpar.pages.units import plural

if TYPE_CHECKING:
    from jaxpar.data.tokens.ngrams import Overlap
    from jaxpar.evaluation.harness import HarnessTasks
    from jaxpar.evaluation.language_model import LanguageModel
    from jaxpar.evaluation.outcome import Outcome
    from jaxpar.evaluation.task import Task

NGRAM = 13
OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
"""Variables with which lm-evaluation-harness takes data from files and caches alone, unless the user sets them to 0."""
EPILOG = """\
A task is a file: .txt is a text whose perplexity is measured; .jsonl has examples of a multiple choice, of questions or
texts; .yaml has settings besides. Other names are tasks of lm-evaluation-harness. docs/evaluation.md describes them.
"""


@command()
def main(arguments: Sequence[str]) -> None:
    """Evaluate from the command line; the exit code: 0 done, 2 a user error, 130 interrupted."""
    options = _parser().parse_args(arguments)
    if options.model is None and options.contamination is None:
        raise UserError("expected --model MODEL, or --contamination FOLDER, or both")
    if options.contamination is None and options.ngram is not None:
        raise UserError("--ngram is for --contamination FOLDER: expected it too")
    if options.model is None:
        supplied = {
            "--length": options.length,
            "--tokenizer": options.tokenizer,
            "--adapter": options.adapter,
            "--set": options.overrides or None,
        }
        supplied["--special-tokens"] = options.special_tokens or None
        for name, value in supplied.items():
            if value is not None:
                raise UserError(f"{name} is for --model MODEL: expected it too")
    _check_out(options.out)
    options.ngram = options.ngram or NGRAM
    _evaluate(options)


def _parser() -> Parser:
    parser = Parser("jaxpar.evaluate", "Measure how well a model does on texts and tasks.", EPILOG)
    parser.add_model(required=False)
    parser.add_adapter()
    parser.add_argument("--tasks", metavar="FILE|NAME", nargs="+", required=True, help="what to evaluate")
    words = "folder of further task YAML files for lm-evaluation-harness"
    parser.add_argument("--include-path", metavar="FOLDER", type=Path, help=words)
    words = "tokens that the model reads at most (default: as its config.json or its run says)"
    parser.add_argument("--length", metavar="N", type=positive, help=words)
    words = "token folder of training data: report n-grams of the tasks that occur in it; needs no model"
    parser.add_argument("--contamination", metavar="FOLDER", type=Path, help=words)
    words = f"tokens of an n-gram (default: {NGRAM})"
    parser.add_argument("--ngram", metavar="N", type=positive, help=words)
    parser.add_argument("--out", metavar="FILE", type=Path, help="write the results, of each example too, as JSON")
    parser.add_json()
    return parser


def _evaluate(options: argparse.Namespace) -> None:
    from jaxpar.evaluation.task_file import is_task_file, read_tasks

    tasks = read_tasks([word for word in options.tasks if is_task_file(word)])
    names = [word for word in options.tasks if not is_task_file(word)]
    if names and (options.contamination is not None or options.model is None):
        raise UserError(f"--tasks: {quoted(names[0])}: the texts of a task are looked for only where it is a file")
    if options.include_path is not None and not names:
        raise UserError("--include-path is for tasks by name: expected one in --tasks")
    harness = _harness(names, options.include_path) if names else None
    overlaps = None if options.contamination is None else _overlaps(options, tasks)
    if options.model is None:
        assert overlaps is not None, "one of the two is given"
        _show(options, {}, _checked(tasks, overlaps, {}, None))
        return
    import jax

    from jaxpar.evaluation.context_length import context_length
    from jaxpar.evaluation.language_model import LanguageModel
    from jaxpar.evaluation.run_task import run_task
    from jaxpar.generation.placed_model import open_model, place_model
    from jaxpar.interop.adapters.open_adapter import merged
    from jaxpar.interop.sources.hf_folder import HFFolder
    from jaxpar.interop.sources.tokenizer import text_of

    config, source = open_model(options.model, options.overrides)
    text = text_of(source, options.tokenizer, report, special_tokens=options.special_tokens)
    length = context_length(source, options.length)
    model = LanguageModel(place_model(config, merged(source, options.adapter)), text, length)
    if overlaps is not None:
        _ = model.begin  # Min-k% needs it: refused now, and not after the tasks.
    outcomes = {task.name: run_task(model, task) for task in tasks}
    if harness is not None:
        for name, outcome in harness.run(model).items():
            outcomes[f"lm_eval:{name}" if name in outcomes else name] = outcome
    if overlaps is not None:
        outcomes = _checked(tasks, overlaps, outcomes, model)
    if jax.process_index():
        return
    step = None if isinstance(source, HFFolder) else source.step
    about = {"step": step, "length": length, "compute": model.model.config.precision.compute}
    adapted = {} if options.adapter is None else {"adapter": str(options.adapter)}
    record = _show(options, {"model": str(options.model)} | adapted | about, outcomes)
    if options.adapter is None and not isinstance(source, HFFolder) and source.run_folder is not None:
        _store(source.run_folder, record)


def _overlaps(options: argparse.Namespace, tasks: Sequence[Task]) -> list[list[Overlap]]:
    """The n-grams that each text of each task shares with `--contamination`."""
    from jaxpar.evaluation.contamination import shared_ngrams

    if options.model is None:
        without_gpus()
    overlaps = shared_ngrams(options.contamination, tasks, options.ngram)
    if short := sum(not one.ngrams for task_overlaps in overlaps for one in task_overlaps):
        report(f"{plural(short, 'text has', 'texts have')} fewer than {options.ngram} tokens, and so no n-gram.")
    return overlaps


def _checked(
    tasks: Sequence[Task],
    overlaps: Sequence[Sequence[Overlap]],
    outcomes: Mapping[str, Outcome],
    model: LanguageModel | None,
) -> dict[str, Outcome]:
    """The results of tasks with their contamination."""
    from jaxpar.evaluation.contamination import Contamination, min_k_of, with_contamination

    checked = {}
    for task, overlap in zip(tasks, overlaps, strict=True):
        contamination = Contamination(overlap, None if model is None else min_k_of(model, task))
        checked[task.name] = with_contamination(outcomes.get(task.name), task, contamination)
    return checked


def _show(
    options: argparse.Namespace, about: Mapping[str, object], outcomes: Mapping[str, Outcome]
) -> dict[str, object]:
    """Print the results and write them to `--out`; returns them without those of each example.

    A number that is not finite, such as a mean of no examples, is null in JSON.
    """
    record = {"time": datetime.now(UTC).isoformat(timespec="seconds"), **about}
    if options.contamination is not None:
        record |= {"contamination": str(options.contamination), "ngram": options.ngram}
    record |= {"tasks": {name: _summary(outcome) for name, outcome in outcomes.items()}}
    record = strict_json(record)
    if options.out is not None:
        details = {name: outcome.details for name, outcome in outcomes.items()}
        _write(options.out, strict_json(record | {"details": details}))
    print(json_text(record) if options.json else _table(outcomes))
    return record


def _harness(names: Sequence[str], folder: Path | None) -> HarnessTasks:
    """Tasks of lm-evaluation-harness. Raises `UserError` where it is not installed, or has no task of a name."""
    from importlib.util import find_spec

    from jaxpar.config.install import install_command
    from jaxpar.evaluation.task_file import SUFFIXES

    if find_spec("lm_eval") is None:
        raise UserError(
            f"--tasks: {quoted(names[0])} is not a file of a task, which ends in {join_or(SUFFIXES)}; other names are "
            f"tasks of lm-evaluation-harness, which is not installed: {install_command('eval')}"
        )
    for variable in OFFLINE:
        os.environ.setdefault(variable, "1")
    from jaxpar.evaluation.harness import HarnessTasks

    return HarnessTasks(names, folder)


def _summary(outcome: Outcome) -> dict[str, object]:
    metrics = {name: list(metric) for name, metric in outcome.metrics.items()}
    return {"kind": outcome.kind, "examples": outcome.examples, "metrics": metrics}


def _table(outcomes: Mapping[str, Outcome]) -> str:
    """A line for each number."""
    rows = [("task", "examples", "metric", "value", "standard error")]
    for name, outcome in outcomes.items():
        for metric, (value, error) in outcome.metrics.items():
            rows.append(
                (name, f"{outcome.examples:,}", metric, f"{value:.4f}", "" if error is None else f"{error:.4f}")
            )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = (0, 2)
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _store(folder: Path, record: Mapping[str, object]) -> None:
    """Add the results to the folder of the run whose weights they are of."""
    from jaxpar.observe.evaluations import append_evaluation

    try:
        append_evaluation(folder, record)
    except OSError as error:
        report(f"The results are not in the run's report: {named(folder)}: {error.strerror}")


def _check_out(out: Path | None) -> None:
    if out is None:
        return
    if out.is_dir():
        raise UserError(f"--out {named(out)}: a folder, expected the name of a file")
    if not out.absolute().parent.is_dir():
        raise UserError(f"--out {named(out)}: the folder {named(out.absolute().parent)} does not exist")


def _write(out: Path, record: Mapping[str, object]) -> None:
    from jaxpar.observe.files import write_atomically

    try:
        write_atomically(out, (json_text(record, indent=1) + "\n").encode())
    except OSError as error:
        raise UserError(f"--out {named(out)}: cannot be written ({error.strerror})") from None


if __name__ == "__main__":
    sys.exit(main())

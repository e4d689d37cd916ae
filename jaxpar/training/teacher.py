"""The likeliest tokens of a teacher after each token of a run's rows, computed once and stored in the run's folder.

The name of a file has the digest of what its values depend on (the row's tokens, the model, the precision, the
temperature), so those of another model or of other data are never taken for them. All processes share the folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxpar.checkpoint.errors import reason
from jaxpar.checkpoint.processes import run_on_process_0
from jaxpar.config import Config, UserError
from jaxpar.config.spelling import named
from jaxpar.data import Data
from jaxpar.data.packing import Row
from jaxpar.data.tokens.digests import digest
from jaxpar.data.tokens.reference_file import ReferenceFile
from jaxpar.distributed import liveness
from jaxpar.generation.scorer import Scorer
from jaxpar.interop.sources.open_source import Model
from jaxpar.observe.events import Listener
from jaxpar.observe.files import write_atomically
from jaxpar.pages.units import plural

FOLDER = ".teacher"
"""Hidden, since a folder with other files and no configuration is not that of a run."""
_GROUP = 64
"""Rows after which files are written."""


class TeacherFiles:
    """The files of a run's rows.

    Args:
        config: of the run.
        teacher: its digest and vocabulary are used.
    """

    def __init__(self, config: Config, teacher: Model):
        loss, self._teacher = config.loss, teacher
        self.top_k = loss.top_k
        self.folder = Path(config.run.dir).expanduser() / config.run.name / FOLDER
        self._facts = {
            "model": str(teacher.digest), "compute": config.precision.compute, "top_k": str(loss.top_k),
            "temperature": repr(loss.temperature),
        }  # fmt: skip

    def row_file(self, row: Row) -> ReferenceFile:
        """The file of a row: of each token the likeliest tokens as int32, then their log-probabilities."""
        content = row["tokens"].astype("<i4").tobytes() + row["segments"].astype("<i4").tobytes()
        return ReferenceFile(self.folder, {**self._facts, "row": digest(content)}, 2 * row["tokens"].size * self.top_k)

    def fields(self, row: Row) -> Row:
        """The fields of a row. Raises `UserError` where its file is missing or damaged."""
        file, shape = self.row_file(row), (2, row["tokens"].size, self.top_k)
        if (values := file.read()) is None:
            raise UserError(f"{named(file.path)} is missing: no pass of the teacher wrote it; start the run again")
        tokens, likely = values.reshape(shape)
        return {"teacher_tokens": tokens.view(np.int32), "teacher_likely": likely}

    def write(self, rows: Sequence[Row], scorer: Scorer) -> None:
        """Compute the values of rows and write their files, which are there on every process when this returns.

        Raises `UserError` for values that are not finite, and, on every process, for a file that cannot be written.
        """
        documents = [
            (index, np.flatnonzero(row["segments"] == one))
            for index, row in enumerate(rows)
            for one in range(1, row["segments"].max() + 1)
        ]
        # The last token of a text is scored and has nothing after it, so any will do.
        texts = [[*rows[index]["tokens"][inside].tolist(), 0] for index, inside in documents]
        tokens = np.zeros((len(rows), rows[0]["tokens"].size, self.top_k), np.int32)
        likely = np.zeros(tokens.shape, np.float32)
        for (index, inside), scores in zip(documents, scorer.scored(texts, choices=self.top_k), strict=True):
            tokens[index, inside], likely[index, inside] = scores.tokens, scores.choices
        if not np.isfinite(likely).all():
            raise UserError("loss.reference: the teacher's log-probabilities are not finite; expected finite weights")

        def store() -> None:
            for row, of_row, by_token in zip(rows, tokens, likely, strict=True):
                file = self.row_file(row)
                try:
                    self.folder.mkdir(parents=True, exist_ok=True)
                    write_atomically(
                        file.path, file.encoded(np.concatenate([of_row.view(np.float32), by_token]).ravel())
                    )
                except OSError as error:
                    raise UserError(
                        f"{named(file.path)}, values of the teacher, cannot be written ({reason(error)}); once it can "
                        "be, the same command computes those that are missing"
                    ) from error

        run_on_process_0(store)


def taught(config: Config, data: Data, teacher: Model | None) -> Data:
    """Data whose rows have the fields of the teacher, once a `TeacherPass` has written their files.

    Raises `UserError` for a teacher of another vocabulary.
    """
    assert teacher is not None, "a loss with a teacher names it"
    vocab, known = config.model.vocab, teacher.model.vocab
    assert vocab is not None and known is not None, "the vocabulary is known once the data is open"
    if not data.vocab <= known <= vocab or config.loss.top_k >= known:
        raise UserError(
            f"loss.reference: {named(teacher.path)} has a vocabulary of {known}, the data one of {data.vocab} and the "
            f"model one of {vocab}; expected a teacher of the same tokenizer, and loss.top_k ({config.loss.top_k}) "
            "below its vocabulary"
        )
    files = TeacherFiles(config, teacher)
    return data.with_fields(files.fields)


class TeacherPass:
    """The pass of a teacher over the rows that a run uses, once for each order of them.

    Args:
        files: of the run.
        scorer: makes the teacher, on every process alike; called if a file is missing.
    """

    def __init__(self, files: TeacherFiles, scorer: Callable[[], Scorer]):
        self._files, self._scorer = files, scorer
        self._done: tuple[object, int] | None = None
        """The order of the rows whose files are there, and the first of them."""

    def provide(self, data: Data, left_out: tuple[int, ...], used: range, evaluated: int, listeners: Listener) -> None:
        """Write the files of rows that have none.

        Args:
            data: with `taught` rows.
            left_out: numbers of batches that no step uses, which decide the order of the rows.
            used: the examples that steps use.
            evaluated: the number of examples of each validation set that evaluations use.
            listeners: receive the progress.
        """
        order = left_out, data.facts
        if self._done is not None and self._done[0] == order and self._done[1] <= used.start:
            return
        liveness.report_activity("computing log-probabilities of the teacher")
        splits: list[tuple[Any, range]] = [
            (data.train, used),
            *((rows, range(evaluated)) for rows in data.evaluated.values()),
        ]

        def missing() -> list[tuple[int, int]]:
            return [
                (split, example)
                for split, (rows, examples) in enumerate(splits)
                for example in examples
                if not self._files.row_file(rows.plain.row(example)).path.exists()
            ]

        left: Any = run_on_process_0(missing)
        if left:
            text = f"Computing the {self._files.top_k} likeliest tokens of the teacher in {plural(len(left), 'row')}."
            scorer = self._scorer()
            for first in range(0, len(left), _GROUP):
                listeners.progress(text, first, len(left))
                group = left[first : first + _GROUP]
                self._files.write([splits[split][0].plain.row(example) for split, example in group], scorer)
            listeners.progress(text, len(left), len(left))
        self._done = order, used.start

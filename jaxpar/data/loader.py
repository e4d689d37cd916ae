"""The batch of a step, as a function of the step.

Row `r` of step `k` is example `k * batch_size + r` on every host, or in place of the product the rows of all batches
before, where they differ in size: each host loads the rows that its devices hold, and a run that resumes at step `k`,
on any number of hosts, gets the same data as an uninterrupted run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from jaxpar.data.packing import PositionedRows, Rows, plain_rows

type Batch = dict[str, np.ndarray]
"""A row's fields stacked to [rows, sequence_length], and `examples` int64 [rows], the examples' numbers."""

_THREADS = 2


def batch_rows(dataset: Rows, step: int, batch_size: int, rows: Sequence[int] | np.ndarray) -> Batch:
    """The given rows of the batch of a step.

    Args:
        dataset: the source of the rows.
        step: the step, from 0.
        batch_size: rows of the whole batch, over all hosts.
        rows: numbers of the rows wanted, each below `batch_size`.
    """
    assert len(rows) and all(0 <= row < batch_size for row in rows), "rows of the global batch"
    return rows_at(dataset, step * batch_size, rows)


def rows_at(dataset: Rows, first: int, rows: Sequence[int] | np.ndarray) -> Batch:
    """The given rows of the batch whose first example is `first`."""
    examples = [first + int(row) for row in rows]
    if isinstance(plain := plain_rows(dataset), PositionedRows):
        plain.ask(examples)
    parts = [dataset.row(example) for example in examples]
    batch = {name: np.stack([part[name] for part in parts]) for name in parts[0]}
    return batch | {"examples": np.array(examples, np.int64)}


def batch_index(step: int, left_out: Sequence[int] = ()) -> int:
    """The number of the batch that a step uses: batches are taken in order, except those that are left out.

    Leaving out a later batch changes nothing before it: the batch stays a function of the step and `left_out`.
    """
    for batch in sorted(left_out):
        if batch <= step:
            step += 1
    return step


def batches(
    dataset: Rows,
    *,
    batch: Callable[[int], tuple[int, Sequence[int] | np.ndarray]],
    first_step: int = 0,
    left_out: Sequence[int] = (),
    prefetch: int = 2,
) -> Iterator[Batch]:
    """The batches of `first_step` and every step after it, prepared ahead by threads; it never ends.

    Args:
        dataset: the source of the rows.
        batch: from the number of a batch to its first example, and the numbers of the rows wanted of it.
        first_step: step of the first batch.
        left_out: numbers of batches that no step uses.
        prefetch: batches prepared ahead; 0 prepares each on demand.
    """
    import grain  # Only here: machines that make their batches otherwise do not need it.

    steps = grain.MapDataset.range(first_step, 2**62)
    options = grain.ReadOptions(num_threads=min(prefetch, _THREADS), prefetch_buffer_size=prefetch)
    numbers = steps.map(lambda step: batch_index(step, left_out))
    return iter(numbers.map(lambda index: rows_at(dataset, *batch(index))).to_iter_dataset(options))

"""The naive guess of a run's speed, which predictions are compared with: one share of the peak for each kind of GPU.

Before a run of its source was measured it is the median of the other sources' runs on GPUs of the same generation;
after one was, it is the share that this one reached.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import permutations
from statistics import median

from benchmarks.validation.published import Run
from jaxpar.model.flops import causal_pairs, flops_per_step


def share_of_peak(run: Run) -> float | None:
    """The share of the dense 16-bit peak that a run was measured to reach; None where its speed was not."""
    if run.tokens_per_s_per_gpu is None:
        return None
    tokens = run.sequence * run.batch
    pairs = causal_pairs(run.model, tokens, run.sequence)
    per_token = flops_per_step(run.model, tokens, pairs, run.model.vocab or 0) / tokens
    return per_token * run.tokens_per_s_per_gpu / run.cluster.gpu.training_peak


def naive(runs: Sequence[Run], known: Iterable[Run] = ()) -> dict[str, list[float]]:
    """By source: the relative errors of tokens/s/GPU, above 0 where a run was slower; a run on GPUs that no other
    source has is left out.

    Args:
        runs: those that are guessed.
        known: others to guess from, beside the runs of each other source.
    """
    shares: dict[Hashable, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in {(run.source, run.row, run.tokens_per_s_per_gpu): run for run in (*runs, *known)}.values():
        if (share := share_of_peak(run)) is not None:
            shares[_kind(run)][run.source].append(share)
    found: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        own = share_of_peak(run)
        others = [median(each) for name, each in shares[_kind(run)].items() if name != run.source]
        if own is not None and others:
            found[run.source].append(median(others) / own - 1)
    return dict(found)


def naive_beside_a_run(runs: Iterable[Run]) -> dict[str, list[float]]:
    """By source: the errors where another of its runs was measured, of the same software, for each choice of that one:
    the counterpart of `errors.anchored`."""
    groups: dict[tuple[str, Hashable], list[float]] = defaultdict(list)
    for run in runs:
        if (share := share_of_peak(run)) is not None:
            groups[run.source, run.software].append(share)
    found: dict[str, list[float]] = defaultdict(list)
    for (source, _), shares in groups.items():
        found[source] += [measured / own - 1 for measured, own in permutations(shares, 2)]
    return {name: errors for name, errors in found.items() if errors}


def _kind(run: Run) -> Hashable:
    """The generation of its GPUs."""
    return run.cluster.gpu.compute_capability

"""A process that all others wait for, found by comparing the time that each loses by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from jaxpar.observe.pace import SECONDS, Losses

NOTES = 1024
"""Reports that process 0 reads in a log, on average."""


def logs_between(processes: int) -> int:
    """Logs from one comparison of the processes to the next: larger jobs are compared less often."""
    return -(-processes // NOTES)


@dataclass(frozen=True)
class ProcessPace:
    """Report of one process on its steps since its last report."""

    process: int
    host: str
    step: int
    """The last of them; every process reports after the same steps."""
    losses: Losses


@dataclass(frozen=True)
class Straggler:
    """A process that holds up the others, over some steps."""

    pace: ProcessPace
    seconds: float
    """Time that it lost by itself, beyond the median process."""

    @property
    def share(self) -> float:
        """The lost time as a share of all time."""
        return self.seconds / self.pace.losses.seconds


def find_straggler(paces: Sequence[ProcessPace], share: float | None) -> Straggler | None:
    """The process that loses most by itself, if that is `share` of the time more than the median process loses.

    `paces` are those of all processes over the same steps. Only one can be identified: the others wait for it.
    """
    if share is None or len(paces) < 2:
        return None
    worst = max(paces, key=lambda pace: pace.losses.host)
    others = median(pace.losses.host for pace in paces if pace is not worst)
    straggler = Straggler(worst, worst.losses.host - others)
    return straggler if straggler.seconds > SECONDS and straggler.share > share else None

"""The process that blocks a job without progress: one sentence from the last signs of each process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jaxpar.pages.units import seconds

MOST_NAMED = 4
"""The most processes that a sentence names one by one."""

IDLE_S = 45.0
"""Seconds that a process may be idle while others wait for it in an activity that is always busy."""

CONTINUES = "the job ends here, and the same command continues it from its newest checkpoint"


@dataclass(frozen=True)
class Mark:
    """The activity of a process's main thread."""

    count: int
    """Marks set before this one. All processes set the same marks in the same order, so it shows who is behind."""
    at: str
    """Where, in words that follow "it was": `in step 12`, `compiling the step`."""
    limit_s: float
    """Time limit of the activity, in seconds."""
    limit_key: str
    """The configuration key of this limit."""
    waiting_limit_s: float | None = None
    """Time limit of a step while a process that is behind is outside a step, in seconds. None outside steps."""
    busy: bool = False
    """Whether a process always computes, reads or writes here: then an idle one hangs."""


@dataclass(frozen=True)
class Sign:
    """The last known state of a process."""

    process: int
    host: str
    mark: Mark
    age_s: float
    """Seconds since it set its mark."""
    silent_s: float
    """Seconds since its last message; 0 for this process."""
    idle_s: float = 0.0
    """Seconds for which it had been idle at its last message."""

    @property
    def name(self) -> str:
        """`process 3 on node-b`."""
        return f"process {self.process} on {self.host}"


def died(sign: Sign) -> str:
    """The sentence about a process whose connection ended without a message."""
    return f"{sign.name} died (it was {sign.mark.at}, {_ago(sign.silent_s)}); {CONTINUES}"


def failed(sign: Sign, why: str) -> str:
    """The sentence about a process that ended and gave a reason."""
    return f"{sign.name} stopped (it was {sign.mark.at}) and reported: {why}"


def garbled(sign: Sign, what: str) -> str:
    """The sentence about a process that sent an invalid message."""
    return f"{sign.name} sent something that is not a message of the watch ({what}; it was {sign.mark.at}); {CONTINUES}"


def silent(signs: Sequence[Sign], timeout_s: float) -> str | None:
    """The sentence about processes that sent nothing for `timeout_s`; None when there are none."""
    lost = [sign for sign in signs if sign.silent_s > timeout_s]
    if not lost:
        return None
    return (
        f"{_named(lost)} gave no sign of life for {timeout_s:g} s (distributed.heartbeat_timeout_s; "
        f"{_was(lost)}): stopped, or its host or network is down; {CONTINUES}"
    )


def waits_for_pause(signs: Sequence[Sign]) -> bool:
    """Whether a process that is behind is outside a step, for example saving."""
    return any(sign.mark.waiting_limit_s is None for sign in laggards(signs))


def stalled(signs: Sequence[Sign], since_pause_s: float = math.inf) -> str | None:
    """The sentence about processes that stay in one place for too long, and hold up the others; None without one.

    Args:
        signs: of all processes.
        since_pause_s: seconds since `waits_for_pause` last held. While it does, those in a step can only wait: their
            time counts from its end.
    """
    behind, pausing = laggards(signs), waits_for_pause(signs)
    late = [sign for sign in signs if _counted_s(sign, pausing, since_pause_s) > _limit_s(sign.mark, pausing)]
    if not late:
        return _idle(behind) if len(behind) < len(signs) else None
    limit = f"{_limit_s(late[0].mark, pausing):g} s ({late[0].mark.limit_key})"
    if len(behind) < len(signs):
        waits = f"and the others wait for it ({_was(behind)})"
        return f"{_named(behind)} made no progress for {limit}, {waits}; {CONTINUES}"
    return (
        f"no process made progress for {limit}, all of them {behind[0].mark.at}: a collective that does not end, or "
        f"files that do not answer; {CONTINUES}"
    )


def _idle(behind: Sequence[Sign]) -> str | None:
    idle = [sign for sign in behind if sign.mark.busy and min(sign.idle_s, sign.age_s) > IDLE_S]
    if not idle:
        return None
    return f"{_named(idle)} did nothing for {IDLE_S:g} s, and the others wait for it ({_was(idle)}); {CONTINUES}"


def laggards(signs: Sequence[Sign]) -> list[Sign]:
    """The processes for which the others wait: all if none is behind."""
    first = min(sign.mark.count for sign in signs)
    return [sign for sign in signs if sign.mark.count == first]


def _counted_s(sign: Sign, pausing: bool, since_pause_s: float) -> float:
    in_step = sign.mark.waiting_limit_s is not None
    return min(sign.age_s, since_pause_s) if in_step and not pausing else sign.age_s


def _limit_s(mark: Mark, pausing: bool) -> float:
    return mark.waiting_limit_s if pausing and mark.waiting_limit_s is not None else mark.limit_s


def _named(signs: Sequence[Sign]) -> str:
    names = [sign.name for sign in signs[:MOST_NAMED]]
    more = len(signs) - len(names)
    if more:
        return f"{', '.join(names)} and {more} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _was(signs: Sequence[Sign]) -> str:
    places = list(dict.fromkeys(sign.mark.at for sign in signs))
    return f"{'it was' if len(signs) == 1 else 'they were'} {' or '.join(places[:MOST_NAMED])}"


def _ago(since: float) -> str:
    return f"last heard of {seconds(since)} ago"

"""One job in an exchange between islands. All methods are collective over the processes of the job.

Process 0 reads and writes records. Each process writes the parts that it has, reads the regions of others that it
needs, and checks its share of the files. The outer update is computed with NumPy in float32, in the order of the
islands' names, so that every job has the same bits.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from jaxpar.checkpoint.digests import Entry
from jaxpar.checkpoint.errors import Damage, reason
from jaxpar.checkpoint.processes import judged, run_on_process_0
from jaxpar.config.errors import UserError
from jaxpar.config.schema.islands import IslandsConfig
from jaxpar.config.spelling import named
from jaxpar.config.strict_json import json_text
from jaxpar.distributed import liveness
from jaxpar.optim.outer import OuterArguments, outer_gradient, outer_update
from jaxpar.pages.units import plural
from jaxpar.training.island_jobs import array_files
from jaxpar.training.island_jobs.contributions import Contributions
from jaxpar.training.island_jobs.exchange import Exchange
from jaxpar.training.island_jobs.local_weights import Parts
from jaxpar.training.island_jobs.records import Closed, Contribution, Stored, digest_of
from jaxpar.training.island_jobs.tensor_parts import Part

LONGEST_PAUSE_S = 2.0
"""Between two looks into the folder."""


class Island:
    """An island's outer state, and its part in the rounds.

    Args:
        exchange: the folder.
        config: the section `islands`.
        weights: a digest of the names and shapes of the weights.
        say: takes a sentence for the user.
    """

    def __init__(self, exchange: Exchange, config: IslandsConfig, weights: str, say: Callable[[str], None]) -> None:
        self.exchange, self.config, self._weights, self.say = exchange, config, weights, say
        self.round = 0
        """The round that this island works on."""
        self.digest = ""
        """Digest of the outer state before it."""
        self.shared: Parts = {}
        """The parts of this process of the outer state's weights."""
        self.momentum: Parts = {}
        self._contributions = Contributions(exchange, 0, "", weights)
        """Contributions to this round."""

    def start(self, parts: Parts, saves: Iterable[Part]) -> None:
        """Take the newest outer state of the exchange; these weights are the first one, where there is none."""
        if run_on_process_0(lambda: self.exchange.newest() == 0 and self.exchange.stored(0) is None):
            self.shared, self.momentum = parts, {part: np.zeros_like(array) for part, array in parts.items()}
            self._store(0, None, saves)
        self._take_newest(parts)

    def begin(self) -> None:
        """Say that this island works on the round."""
        run_on_process_0(lambda: self.exchange.begin(self.round))

    def contribute(self, parts: Parts, saves: Iterable[Part], steps: int, tokens: int) -> None:
        """Add the outer gradient of these weights to the round, unless it is closed, or has one of before a restart."""
        island = self.exchange.island
        if run_on_process_0(lambda: self.exchange.is_over(self.round)):
            return
        gradients = {part: outer_gradient(self.shared[part], parts[part]) for part in saves}
        finite = judged(json_text(all(bool(np.isfinite(one).all()) for one in gradients.values())), _all)
        if not finite:
            self.say(f"This island does not contribute to round {self.round}: its weights are not finite.")
            run_on_process_0(lambda: self.exchange.leave(self.round))
            return
        file = lambda name: self.exchange.contribution_file(self.round, island, name)
        files = array_files.written(self.exchange.folder, file, gradients, self.config.wire)
        record = Contribution(self.round, self.digest, self._weights, steps, tokens, files)
        run_on_process_0(lambda: self.exchange.contribute(record))

    def settle(self, stops: Callable[[], bool]) -> Closed | None:
        """Wait until the round is closed, or close it; returns who is accepted.

        Args:
            stops: whether to wait no longer, which returns None; all processes ask equally often.

        Raises:
            UserError: after `islands.wait_s`, no contribution counts, and no other one is expected.
        """
        began, pause, told = time.monotonic(), 0.01, ""
        while True:
            liveness.report_activity(f"waiting for other islands in round {self.round}")
            self._contributions.check(run_on_process_0(lambda: self.exchange.contributed(self.round)))
            late = time.monotonic() - began >= self.config.wait_s
            outcome = run_on_process_0(lambda late=late, pause=pause: self._look(late, pause))
            if "closed" in outcome:
                return Closed(**outcome["closed"])
            if outcome["too_few"] not in ("", told):
                self.say(told := outcome["too_few"])
            if stops():
                return None
            pause = min(LONGEST_PAUSE_S, 1.5 * pause)

    def advance(self, closed: Closed, saves: Iterable[Part]) -> None:
        """Take the next outer state: by the accepted contributions, or the newest that the folder has."""
        following, like = closed.round + 1, list(self.shared)
        if run_on_process_0(self.exchange.newest) > following:
            self._take_newest(like)
        elif (why := self._update(closed)) is None:
            if closed.closed_by == self.exchange.island:
                self._store(following, closed.following, saves)
                if (
                    why := run_on_process_0(lambda: self.exchange.prune(following - self.config.keep_rounds))
                ) is not None:
                    self.say(f"Arrays of old rounds stay in {named(self.exchange.folder.path)} for now ({why}).")
        else:
            self.say(f"Round {closed.round}: {why}; this island waits for the outer state that another one stores.")
            self._wait_until_stored(following)
            self._take_newest(like)

    def _look(self, late: bool, pause: float) -> dict[str, Any]:
        """On process 0: the closed round, or who is there so far, after a pause."""
        closed = self._closed(self.round)
        accepted, refused = self._contributions.accepted, self._contributions.refused
        if closed is None and len(accepted) >= self.config.quorum and (late or not self._contributions.missing()):
            self.exchange.close(self.round, self.digest, accepted, refused)
            closed = self._closed(self.round)
        if closed is not None:
            return {"closed": asdict(closed)}
        time.sleep(pause)
        return {"too_few": self._too_few() if late else ""}

    def _too_few(self) -> str:
        """The reason why the round is not closed, in words. Raises `UserError` where there is nothing to wait for."""
        accepted, refused = self._contributions.accepted, self._contributions.refused
        without = "".join(f"; refused {island} ({why})" for island, why in sorted(refused.items()))
        if not accepted and not self._contributions.missing():
            raise UserError(
                f"islands.folder: round {self.round} of {named(self.exchange.folder.path)} has no outer gradient that "
                f"counts, and no island is expected to add one{without}; expected an island with finite weights"
            )
        return (
            f"Round {self.round} waits for {self.config.quorum} islands (islands.quorum), and has the outer gradients "
            f"of {', '.join(sorted(accepted)) or 'none'}{without}."
        )

    def _update(self, closed: Closed) -> str | None:
        """Take the outer state after this round; where an accepted contribution cannot be read, returns why instead."""
        try:
            files = self._contributions.files(closed.accepted)
        except Damage as damage:
            return str(damage)
        outer = self.config.outer
        arguments = OuterArguments(outer.rate, outer.momentum, 0.0)

        def updated() -> tuple[Parts, Parts]:
            read = [array_files.opened(self.exchange.folder, names, self.config.wire) for names in files]
            weights: Parts = {}
            momentum: Parts = {}
            for part, before in self.shared.items():
                mean = sum_of([one.read(part) for one in read]) / np.float32(len(read))
                state: tuple[Any, Any, Any] = before, self.momentum[part], mean
                new: Any = outer_update(*state, arguments, outer.nesterov)
                weights[part], momentum[part] = new
            return weights, momentum

        why = self._taken(updated)
        if why is None:
            self._reach(closed.round + 1, closed.following)
        return why

    def _taken(self, read: Callable[[], tuple[Parts, Parts]]) -> str | None:
        """Take an outer state's weights and momentum where every process can read its parts, else say why not."""
        try:
            weights, momentum = read()
            answer = None
        except (Damage, OSError) as error:
            weights, momentum, answer = (
                self.shared,
                self.momentum,
                reason(error) if isinstance(error, OSError) else str(error),
            )
        answer = judged(json_text(answer), _first)
        if answer is None:
            self.shared, self.momentum = weights, momentum
        return answer

    def _take_newest(self, like: Iterable[Part]) -> None:
        """Read the newest stored outer state that is intact, and repeat the rounds that were closed after it."""
        like, newest = list(like), run_on_process_0(self.exchange.newest)
        while (why := self._reached(newest, like)) is not None:
            before, newest = newest, run_on_process_0(self.exchange.newest)
            if newest == before:  # else others went on, and may have removed what was read here
                raise UserError(
                    f"islands.folder: {named(self.exchange.folder.path)}: {why}; expected it as it was written"
                )

    def _reached(self, newest: int, like: list[Part]) -> str | None:
        """Take the outer state before the round `newest`; where that cannot be done, returns why."""
        states = run_on_process_0(lambda: [n for n in range(newest, -1, -1) if self.exchange.stored(n) is not None])
        if not any(self._load(index, like) for index in states):
            return f"none of its {plural(len(states), 'outer state')} is intact"
        while self.round < newest:
            record = run_on_process_0(lambda: asdict(self._closed(self.round)))  # pyright: ignore[reportArgumentType] (before the newest)
            closed = Closed(**record)
            if (why := self._update(closed)) is not None:
                return f"round {self.round} cannot be repeated ({why}), and no later outer state is stored"
        return None

    def _closed(self, index: int) -> Closed | None:
        """The end of the round that begins with this outer state. Raises `UserError` where it began with another."""
        closed = self.exchange.closed(index)
        if closed is not None and closed.base != self.digest:
            raise UserError(
                f"islands.folder: round {index} of {named(self.exchange.folder.path)} began with another outer state "
                "than this island has; expected the folder of one exchange"
            )
        return closed

    def _load(self, index: int, like: Iterable[Part]) -> bool:
        """Take the outer state before a round; False where its files are damaged."""
        stored = Stored(**run_on_process_0(lambda: asdict(self.exchange.stored(index) or _MISSING)))
        path = lambda name: self.exchange.state_file(index, stored.stored_by, name)
        files = [(stored.stored_by, path(name), Entry(*entry)) for name, entry in stored.files.items()]
        damaged = array_files.damaged(self.exchange.folder, files)

        def state() -> tuple[Parts, Parts]:
            tensors = array_files.opened(self.exchange.folder, map(path, sorted(stored.files)))
            read = lambda kind: {part: tensors.read(_named(kind, part)) for part in like}
            return read("weights"), read("momentum")

        if (why := damaged.get(stored.stored_by) or self._taken(state)) is not None:
            self.say(f"The outer state of round {index} is not used: {why}.")
            return False
        self._reach(index, stored.digest)
        return True

    def _reach(self, index: int, digest: str) -> None:
        self.round, self.digest = index, digest
        self._contributions = Contributions(self.exchange, index, digest, self._weights)

    def _store(self, index: int, digest: str | None, saves: Iterable[Part]) -> None:
        """Write the outer state before a round, unless another island did."""
        island, saves = self.exchange.island, list(saves)
        parts = {_named("weights", part): self.shared[part] for part in saves}
        parts |= {_named("momentum", part): self.momentum[part] for part in saves}
        path = lambda name: self.exchange.state_file(index, island, name)
        files = array_files.written(self.exchange.folder, path, parts, None)
        record = Stored(index, digest or digest_of(dict(files)), island, files)
        if not run_on_process_0(lambda: self.exchange.store(record)):
            run_on_process_0(lambda: self.exchange.folder.remove(self.exchange.state_file(index, island, "")))

    def _wait_until_stored(self, index: int) -> None:
        """Wait for the outer state before a round, or a later one, as long as for an outer gradient."""
        began = time.monotonic()
        ready = lambda: self.exchange.newest() > index or self.exchange.stored(index) is not None
        while not run_on_process_0(ready) and run_on_process_0(lambda: time.monotonic() - began < self.config.wait_s):
            liveness.report_activity(f"waiting for the outer state of round {index}")
            time.sleep(0.05)


_MISSING = Stored(0, "", "", {})


def _named(kind: str, part: Part) -> Part:
    return part._replace(name=f"{kind}/{part.name}")


def sum_of(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The sum in float32 in this order, which is the same on every machine."""
    total = arrays[0]
    for one in arrays[1:]:
        total = total + one
    return total


def _first(texts: list[str]) -> str | None:
    return next((answer for answer in map(json.loads, texts) if answer is not None), None)


def _all(texts: list[str]) -> bool:
    return all(json.loads(text) for text in texts)

"""The folder of an exchange between islands: who began a round, who contributed, and which contributions are accepted.

    exchange.json                        the model and the outer settings, of the first island
    rounds/00000012/outer.json           the outer state before round 12, with its files in outer/<island>/
                    began/<island>       this island works on the round
                    left/<island>        this island ended before it contributed
                    contributions/<island>.json, <island>/   an outer gradient
                    closed.json          written once: who is accepted, and the digest of the next outer state

Nothing here needs JAX. Process 0 of a job calls these functions; `Island` has what all of its processes do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from jaxpar.checkpoint.errors import Damage, reason
from jaxpar.checkpoint.folders import step_name
from jaxpar.checkpoint.shared_folder import SharedFolder
from jaxpar.config.errors import UserError
from jaxpar.config.reading.typed import spell
from jaxpar.config.spelling import named
from jaxpar.config.strict_json import json_text
from jaxpar.training.island_jobs.records import (
    Closed,
    Contribution,
    Stored,
    digest_of,
    following_digest,
    from_bytes,
    to_bytes,
)

ROUNDS = "rounds"
_AGREED = "exchange.json"


class Exchange:
    """The exchange folder as one island sees it.

    Args:
        path: the folder.
        island: the name of this island.
    """

    def __init__(self, path: Path, island: str) -> None:
        self.folder, self.island = SharedFolder(path), island
        self._pruned = 0
        """Rounds before this one were looked into by `prune`."""

    def check(self, agreed: Mapping[str, object]) -> None:
        """Compare what all islands agree on, by key, with what the exchange began with, if it has begun.

        Raises:
            UserError: it is of another model, or has other outer settings.
        """
        content = self.folder.read(_AGREED)
        if content is None:
            return
        try:
            first = dict(json.loads(content))
        except (ValueError, TypeError, RecursionError) as error:
            raise UserError(
                f"islands.folder: {named(self.folder.path / _AGREED)} is damaged; expected that of an exchange, or a "
                "new folder"
            ) from error
        keys = [key for key in sorted({*first, *agreed}) if first.get(key) != agreed.get(key)]
        if keys:
            differences = "; ".join(f"{key}: {spell(first.get(key))} -> {spell(agreed.get(key))}" for key in keys[:3])
            raise UserError(
                f"islands.folder: {named(self.folder.path)} is the exchange of islands with another configuration "
                f"({differences}); expected these values, or another folder"
            )

    def join(self, agreed: Mapping[str, object]) -> None:
        """Begin the exchange, or join it. Raises `UserError` as `check`."""
        if not self.folder.create(_AGREED, (json_text(agreed, indent=1, sort_keys=True) + "\n").encode()):
            self.check(agreed)

    def round_folder(self, index: int) -> str:
        """The name of a round's folder."""
        return f"{ROUNDS}/{step_name(index)}"

    def rounds(self) -> list[int]:
        """The rounds that have a folder, ascending."""
        return [int(name) for name in self.folder.names(ROUNDS) if name.isascii() and name.isdigit()]

    def begin(self, index: int) -> None:
        """Say that this island works on a round: the others wait for it."""
        self.folder.create(f"{self.round_folder(index)}/began/{self.island}", b"")
        self.folder.remove(f"{self.round_folder(index)}/left/{self.island}")

    def leave(self, index: int) -> None:
        """Say that this island ends: the others do not wait for it."""
        self.folder.create(f"{self.round_folder(index)}/left/{self.island}", b"")

    def expected(self, index: int) -> set[str]:
        """The islands that a round waits for: those accepted in the round before, and those that began it."""
        before = self.closed(index - 1) if index else None
        names = lambda kind: self.folder.names(f"{self.round_folder(index)}/{kind}")
        return {*(() if before is None else before.accepted), *names("began")} - {*names("left")}

    def contribute(self, contribution: Contribution) -> bool:
        """Add the contribution of this island, whose files are there; False where the round has one of it."""
        name = f"{self._contributions(contribution.round)}/{self.island}.json"
        return self.folder.create(name, to_bytes(contribution))

    def is_over(self, index: int) -> bool:
        """Whether a round needs nothing more of this island: it is closed, or has its contribution."""
        return self.closed(index) is not None or self.island in self.contributed(index)

    def contributed(self, index: int) -> list[str]:
        """The islands that contributed to a round, sorted."""
        names = self.folder.names(self._contributions(index))
        return [name.removesuffix(".json") for name in names if name.endswith(".json")]

    def contribution(self, index: int, island: str) -> tuple[Contribution, str]:
        """The record of a contribution, and its digest. Raises `Damage` where it is damaged."""
        content = self.folder.read(f"{self._contributions(index)}/{island}.json")
        if content is None:
            raise Damage("its record is missing")
        return from_bytes(Contribution, content), digest_of(content)

    def checked(self, index: int, island: str, base: str, weights: str) -> tuple[Contribution, str]:
        """Reads the round's outer state and model as `contribution` does; the files are not read. Raises `Damage`."""
        contribution, digest = self.contribution(index, island)
        if contribution.round != index:
            raise Damage(f"it is of round {contribution.round}")
        if contribution.base != base:
            raise Damage("it began with another outer state")
        if contribution.weights != weights:
            raise Damage("it is of another model")
        return contribution, digest

    def contribution_file(self, index: int, island: str, file: str) -> str:
        """The name of a file of a contribution."""
        return f"{self._contributions(index)}/{island}/{file}"

    def closed(self, index: int) -> Closed | None:
        """The end of a round; None while it is open. Raises `UserError` where the record is damaged."""
        name = f"{self.round_folder(index)}/closed.json"
        record = self._record(Closed, name)
        if record is not None and record.following != following_digest(record.base, record.accepted):
            raise self._unusable(name, "its next outer state is not that of its contributions")
        return record

    def close(self, index: int, base: str, accepted: Mapping[str, str], refused: Mapping[str, str]) -> Closed:
        """Close a round, unless another island was first; returns the record that was written."""
        absent = sorted(self.expected(index) - {*accepted, *refused})
        following = following_digest(base, accepted)
        record = Closed(index, base, following, dict(accepted), dict(refused), absent, self.island)
        if self.folder.create(f"{self.round_folder(index)}/closed.json", to_bytes(record)):
            return record
        first = self.closed(index)
        assert first is not None, "a record of this name was there"
        return first

    def newest(self) -> int:
        """The round that is open."""
        return next((index + 1 for index in reversed(self.rounds()) if self.closed(index) is not None), 0)

    def stored(self, index: int) -> Stored | None:
        """The outer state before a round, where it is in files. Raises `UserError` where the record is damaged."""
        return self._record(Stored, f"{self.round_folder(index)}/outer.json")

    def store(self, record: Stored) -> bool:
        """Add an outer state, whose files are there; False where another island was first."""
        return self.folder.create(f"{self.round_folder(record.round)}/outer.json", to_bytes(record))

    def state_file(self, index: int, island: str, file: str) -> str:
        """The name of a file of an outer state."""
        return f"{self.round_folder(index)}/outer/{island}/{file}"

    def digest(self, index: int) -> str | None:
        """The digest of the outer state before a round, by any record; None where there is none."""
        if index and (before := self.closed(index - 1)) is not None:
            return before.following
        return None if (stored := self.stored(index)) is None else stored.digest

    def prune(self, before: int) -> str | None:
        """Remove the arrays of rounds before this one; their records stay.

        Returns why some could not be removed, which the next call tries again; None where none is there any more.
        """
        failed: dict[int, str] = {}
        for index in self.rounds():
            if self._pruned <= index < before:
                for name in self._prunable(index):
                    try:
                        self.folder.remove(name)
                    except OSError as error:  # NFS keeps files that another job has open
                        failed.setdefault(index, f"{name}: {reason(error)}")
        self._pruned = min(failed, default=max(self._pruned, before))
        return failed.get(self._pruned)

    def _prunable(self, index: int) -> list[str]:
        """The names of a round's outer state and of all in its contributions but records."""
        folder, contributions = self.round_folder(index), self._contributions(index)
        arrays = [name for name in self.folder.names(contributions) if not name.endswith(".json")]
        return [f"{folder}/outer.json", f"{folder}/outer", *(f"{contributions}/{name}" for name in arrays)]

    def _contributions(self, index: int) -> str:
        return f"{self.round_folder(index)}/contributions"

    def _record[Record](self, kind: type[Record], name: str) -> Record | None:
        if (content := self.folder.read(name)) is None:
            return None
        try:
            return from_bytes(kind, content)
        except Damage as damage:
            raise self._unusable(name, str(damage)) from damage

    def _unusable(self, name: str, why: str) -> UserError:
        path = named(self.folder.path / name)
        return UserError(f"islands.folder: {path} cannot be used ({why}); expected it as an island wrote it")

"""Contributions to one round as a job has checked them. Collective over the processes of the job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from jaxpar.checkpoint.digests import Entry
from jaxpar.checkpoint.errors import Damage
from jaxpar.checkpoint.processes import run_on_process_0
from jaxpar.training.island_jobs import array_files
from jaxpar.training.island_jobs.exchange import Exchange


class _Checked(NamedTuple):
    digest: str
    """Digest of the record."""
    refused: str | None
    """The reason why it is not accepted; None where it is sound."""
    files: list[str]
    """Names of its files in the folder."""


class Contributions:
    """The contributions to a round, each checked once.

    Args:
        exchange: the folder.
        index: the round.
        base: digest of the outer state before it.
        weights: digest of the names and shapes of the weights.
    """

    def __init__(self, exchange: Exchange, index: int, base: str, weights: str) -> None:
        self._exchange, self._index, self._base, self._weights = exchange, index, base, weights
        self._checked: dict[str, _Checked] = {}

    @property
    def accepted(self) -> dict[str, str]:
        """Island to the digest of its record, of those that are sound."""
        return {island: one.digest for island, one in self._checked.items() if one.refused is None}

    @property
    def refused(self) -> dict[str, str]:
        """Island to why its contribution is not accepted."""
        return {island: one.refused for island, one in self._checked.items() if one.refused is not None}

    def missing(self) -> set[str]:
        """On process 0: islands that are expected to add a contribution, and have not."""
        return self._exchange.expected(self._index) - {*self._checked}

    def check(self, islands: Iterable[str]) -> None:
        """Check the contributions of those islands that were not checked yet."""
        if new := [island for island in islands if island not in self._checked]:
            records = run_on_process_0(lambda: {island: self._record(island) for island in new})
            files = [
                (island, self._exchange.contribution_file(self._index, island, name), Entry(*entry))
                for island, (_, why, entries) in records.items() if why is None for name, entry in entries.items()
            ]  # fmt: skip
            damaged = array_files.damaged(self._exchange.folder, files)
            for island, (digest, why, entries) in records.items():
                names = [self._exchange.contribution_file(self._index, island, name) for name in sorted(entries)]
                self._checked[island] = _Checked(digest, why or damaged.get(island), names)

    def files(self, accepted: Mapping[str, str]) -> list[list[str]]:
        """The files of the contributions with these digests, by island in the order of names.

        Raises:
            Damage: one cannot be read, or is another one than was accepted.
        """
        self.check(sorted(accepted))
        for island, digest in sorted(accepted.items()):
            one = self._checked[island]
            why = one.refused or (None if one.digest == digest else "it was replaced after its round was closed")
            if why is not None:
                raise Damage(f"the contribution of {island} cannot be read ({why})")
        return [self._checked[island].files for island in sorted(accepted)]

    def _record(self, island: str) -> tuple[str, str | None, Mapping[str, Entry]]:
        """On process 0: digest of a contribution's record, why it is refused, and its files."""
        try:
            contribution, digest = self._exchange.checked(self._index, island, self._base, self._weights)
        except Damage as damage:
            return "", str(damage), {}
        return digest, None, contribution.files

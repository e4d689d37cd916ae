"""A run's folder in an object store (`run.mirror`): uploaded in the background, and fetched where the folder is gone.

Checkpoints are sealed on disk first, and uploaded then: in the store, too, one without a manifest is not complete.
Process 0 decides which checkpoint is uploaded, in a file of the run's folder; each process uploads its share.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from jaxpar.checkpoint import manifest
from jaxpar.checkpoint.errors import Damage, reason
from jaxpar.checkpoint.facts import FACTS, skipped_in_row
from jaxpar.checkpoint.folders import CHECKPOINTS, deletable, listed_steps, step_folder, step_name
from jaxpar.checkpoint.manifest import MANIFEST, is_sealed
from jaxpar.config import Config
from jaxpar.config.paths import RUN_CONFIG
from jaxpar.observe.files import write_atomically
from jaxpar.pages.units import plural, size
from jaxpar.remote.store import StoredFile, StoreError, listed, read, traffic, upload_file, write
from jaxpar.remote.upload import begin, finish, remove_folder, send
from jaxpar.training.run_folder.mirror_fetch import OWNER

TURN = ".uploading"
"""File of the run's folder that names the checkpoint being uploaded."""
LOOK_S = 2.0
"""Seconds between two looks for what another process does."""
PATIENCE_S = 60.0
"""Process 0 uploads the shares of others once nothing of them has come for so long."""


class Share(NamedTuple):
    """The index of this process in its job, and how many there are."""

    index: int
    count: int


@dataclass
class Mirror:
    """The copy of a run's folder at a URL. `begin` starts its thread; process 0 calls the other methods.

    Args:
        url: of the copy.
        folder: the run's.
        config: of the run.
        share: of this process.
    """

    url: str
    folder: Path
    config: Config
    share: Share
    uploading: int | None = None
    """Step of the checkpoint being uploaded, which stays in the folder until then."""
    _wake: threading.Condition = field(default_factory=threading.Condition)
    _waiting: set[int] = field(default_factory=set)
    """Steps of complete checkpoints that are not uploaded."""
    _notes: list[str] = field(default_factory=list)
    _closing: bool = False
    _thread: threading.Thread | None = None
    _uploaded: int = 0
    _stays: bool = False
    """Whether something could not be removed from the store."""
    _missed: int = 0
    """Checkpoints that retention removed before they were uploaded."""
    _tried: set[int] = field(default_factory=set)
    """The steps of them that failed since the last success."""
    _owner: bytes = b""
    """Contents of `OWNER` that this start wrote, once it did."""
    _failures: int = 0
    _failure: str | None = None
    """The reason why the last try failed, if it did."""
    _unread: str | None = None
    """The reason why a file of the run could not be read, if so, at the last try."""
    _skipped: dict[int, int] = field(default_factory=dict)
    """Complete checkpoints of the store to the steps in a row that had been skipped."""
    _sizes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Times and sizes of the run's other files when they were uploaded."""

    def begin(self) -> None:
        """Start the thread, and upload the checkpoints that the folder has and the store lacks."""
        steps = listed_steps(self.folder / CHECKPOINTS)
        self._waiting.update(step for step in steps if is_sealed(self.folder, step))
        work = self._serve if self.share.index == 0 else self._follow
        self._thread = threading.Thread(target=work, name="mirror", daemon=True)
        self._thread.start()

    def saved(self, step: int) -> None:
        """The checkpoint of a step is complete."""
        with self._wake:
            self._waiting.add(step)
            self._wake.notify()

    def notes(self) -> list[str]:
        """Sentences for the user since the last call."""
        with self._wake:
            notes, self._notes = self._notes, []
        return notes

    def finish(self) -> str | None:
        """Upload what is left, and end; returns why something could not be uploaded, if so. Every process calls it, the
        others once process 0 has."""
        with self._wake:
            self._closing = True
            self._tried.clear()
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self.share.index:
            return None
        left = sorted(step for step in self._waiting if is_sealed(self.folder, step))
        if not left:
            try:
                self._upload_files()
                self._failure = self._unread
            except (StoreError, OSError) as error:
                self._failure = _failure_reason(error)
        self._note(
            f"{plural(self._uploaded, 'checkpoint')} of this run went to {self.url}; {size(traffic.bytes)} were copied "
            f"from and to stores in all, with {plural(traffic.retries, 'retry', 'retries')}."
            + (
                f" {plural(self._missed, 'checkpoint was', 'checkpoints were')} deleted here before that."
                if self._missed
                else ""
            )
        )
        if self._failure is None and not left:
            return None
        what = f"the checkpoint of step {left[-1]} is" if left else "the newest files of the run are"
        return f"{what} not in {self.url} ({self._failure}); all is in {self.folder}, and the same command uploads it"

    def _serve(self) -> None:
        """On process 0: upload checkpoints as they come, the newest first."""
        while (step := self._next()) is not None:
            try:
                self._upload_files()
                self._upload(step)
            except Exception as error:  # of any kind: a thread that ends in silence would lose what follows
                if not is_sealed(self.folder, step):  # retention removed it before its turn
                    self._waiting.discard(step)
                    self._missed += 1
                    continue
                self._failure = _failure_reason(error)
                self._failures += 1
                self._note(
                    f"The checkpoint of step {step} is not uploaded yet: {self._failure} (failure {self._failures}); "
                    "training goes on, and it is tried again with the next one and at the end."
                )
                if self._closing:
                    return
            else:
                with self._wake:
                    self._waiting.discard(step)
                    self._tried.clear()  # the store answers again
                    self._failure = None

    def _next(self) -> int | None:
        """Wait for a checkpoint to upload; None at the end."""
        with self._wake:
            self.uploading = None
            while not self._closing and not self._waiting - self._tried:
                self._wake.wait()
            step = max(self._waiting - self._tried, default=None)
            self.uploading = step
            if step is not None:
                self._tried.add(step)
            return step

    def _note(self, text: str) -> None:
        with self._wake:
            self._notes.append(text)

    def _follow(self) -> None:
        """On the other processes: upload this process's share of the checkpoint whose turn it is."""
        done = ""
        while not self._closing:
            time.sleep(LOOK_S)
            try:
                turn = (self.folder / TURN).read_text()
                if turn != done:
                    step = int(turn.split()[0])
                    path = step_folder(self.folder / CHECKPOINTS, step)
                    send(path, self._checkpoint(step), self._names(path)[self.share.index], {})
                    done = turn
            except (Damage, StoreError, OSError, ValueError):
                continue  # process 0 uploads what does not come, and reports what it cannot

    def _upload(self, step: int) -> None:
        """Upload one checkpoint, and remove those that are no longer retained."""
        path, url = step_folder(self.folder / CHECKPOINTS, step), self._checkpoint(step)
        try:
            text, lists = manifest.read(path).text, self._names(path)
        except Damage as damage:
            raise OSError(f"{path}: {damage}") from damage
        if read(f"{url}/{MANIFEST}") != text:
            names = [name for names in lists for name in names]
            there = begin(url, text, (MANIFEST,))
            if self.share.count > 1:
                write_atomically(self.folder / TURN, f"{step} {time.time_ns()}".encode())
            send(path, url, lists[0], there)
            send(path, url, names, self._wait_for_others(url, names, len(lists[0])))
            self._check_owner()
            try:
                finish(path, url, text, [*names, MANIFEST], (MANIFEST,))
            except StoreError as error:
                if read(f"{url}/{MANIFEST}") != text:
                    raise
                self._record_removal_error(error)
            self._uploaded += 1
        try:
            self._prune(step)
        except (StoreError, OSError) as error:
            self._record_removal_error(error)

    def _record_removal_error(self, error: Exception) -> None:
        """Note once why what is to be removed stays in the store: the account may not be allowed to delete."""
        if not self._stays:
            self._note(f"What retention removes stays in {self.url}: {_failure_reason(error)}.")
        self._stays = True

    def _wait_for_others(self, url: str, names: list[str], local: int) -> Mapping[str, StoredFile]:
        """The files in the store, once all are there or nothing more has come for `PATIENCE_S`."""
        files, came = listed(url), time.monotonic()
        while self.share.count > 1 and not files.keys() >= set(names):
            time.sleep(LOOK_S)
            before, files = len(files), listed(url)
            if len(files) > before:
                came = time.monotonic()
            elif time.monotonic() - came > PATIENCE_S:
                break
        return files

    def _prune(self, step: int) -> None:
        files = listed(f"{self.url}/{CHECKPOINTS}")
        complete = manifest.complete_steps(f"{CHECKPOINTS}/{name}" for name in files)
        for one in complete:
            if one not in self._skipped:
                self._skipped[one] = skipped_in_row(json.loads(read(f"{self._checkpoint(one)}/{FACTS}") or b"{}"))
        skipped = {one: self._skipped[one] for one in complete if one <= step}
        config = self.config.checkpoint
        doomed = {step_name(one) for one in deletable(skipped, config.keep_last, config.keep_every)}
        names: dict[str, list[str]] = {}
        for name in files:
            first, _, rest = name.partition("/")
            partial = (
                first.isdigit() and int(first) < step and int(first) not in complete and not self._waits(int(first))
            )
            if first in doomed or partial:
                names.setdefault(first, []).append(rest)
        for first, rest in names.items():
            remove_folder(f"{self.url}/{CHECKPOINTS}/{first}", rest, (MANIFEST,))

    def _waits(self, step: int) -> bool:
        return step in self._waiting and is_sealed(self.folder, step)

    def _upload_files(self) -> None:
        """Upload the files of the run's folder that are not checkpoints' and have changed."""
        self._check_owner()
        self._unread = None
        # Its configuration first: without it the store has no run.
        for path in sorted(self.folder.rglob("*"), key=lambda path: (path.name != RUN_CONFIG, path)):
            name = path.relative_to(self.folder)
            if name.parts[0] == CHECKPOINTS or any(part.startswith(".") for part in name.parts) or not path.is_file():
                continue
            status = path.stat()
            state = status.st_mtime_ns, status.st_size
            if self._sizes.get(name.as_posix()) != state:
                try:
                    upload_file(path, f"{self.url}/{name.as_posix()}")
                    self._sizes[name.as_posix()] = state
                except OSError as error:  # it may not be readable, which costs no checkpoint
                    self._unread = f"{path}: {_failure_reason(error)}"

    def _check_owner(self) -> None:
        """The newest start of a run owns its URL: earlier ones, on machines that still run, upload no more."""
        if not self._owner:
            write(f"{self.url}/{OWNER}", owner := uuid.uuid4().bytes)
            self._owner = owner
        elif read(f"{self.url}/{OWNER}") != self._owner:
            raise StoreError(f"{self.url}: a later start of this run uploads to it")

    def _names(self, path: Path) -> list[list[str]]:
        """The files of a checkpoint, divided among the processes."""
        return manifest.divided(manifest.read(path).files, self.share.count)

    def _checkpoint(self, step: int) -> str:
        return f"{self.url}/{CHECKPOINTS}/{step_name(step)}"


def _failure_reason(error: Exception) -> str:
    return str(error) if isinstance(error, StoreError) else reason(error)

"""The checkpoints of one run: saved in the background, sealed by a manifest, verified before they are used."""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jax
from jaxtyping import PyTree

from jaxpar.checkpoint import folders, manifest, processes, retention, sealing
from jaxpar.checkpoint.arrays import ArrayFolder
from jaxpar.checkpoint.errors import CheckpointError, Damage, reason
from jaxpar.checkpoint.facts import CONTENTS, FACTS, file_of, read_contents, read_facts
from jaxpar.checkpoint.leaves import check_arrays, check_same, named_leaves, part, specs
from jaxpar.checkpoint.pieces import Pieces

STATE = "state"
_meetings = itertools.count()


class Checkpointer:
    """Saves and restores states (trees of `jax.Array` or `Pieces`) in `<folder>/<step:08d>/`.

    With several processes all methods are collective and belong on the main thread; the folder is shared. Each process
    makes the digests of what it writes, and verifies its share of what is read. Process 0 writes the manifest, deletes
    what is no longer kept, and is the only one that calls `report`.

    A checkpoint whose facts have a `skipped_in_row` above 0 is not healthy: nothing is deleted when it is saved, and it
    does not count where the newest healthy ones are kept.

    Args:
        folder: where the checkpoints of this run are; made, in a folder that exists, when the first one is saved.
        keep_last: how many of the newest checkpoints to keep, and of the newest healthy ones, at least 1.
        keep_every: keep every checkpoint whose step is a multiple of this permanently; None keeps none permanently.
        report: takes one sentence for the user, such as why a checkpoint is skipped.
        spared: gives a step that is in use, which is not deleted yet.

    Raises:
        CheckpointError: `keep_last` or `keep_every` is below 1.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep_last: int,
        keep_every: int | None,
        report: Callable[[str], None],
        spared: Callable[[], int | None] = lambda: None,
    ) -> None:
        if keep_last < 1:
            raise CheckpointError(f"checkpoint.keep_last is {keep_last}: expected 1 or more")
        if keep_every is not None and keep_every < 1:
            raise CheckpointError(f"checkpoint.keep_every is {keep_every}: expected 1 or more, or null")
        self.folder = Path(folder).absolute()
        self._keep_last = keep_last
        self._keep_every = keep_every
        self._report = report
        self._spared = spared
        self._existed = os.path.isdir(self.folder)
        self._arrays = ArrayFolder()
        self._thread: threading.Thread | None = None
        self._saving = 0
        self._failure: Exception | None = None
        self._failed: set[int] = set()
        self._notes: list[str] = []
        self._verified: set[int] = set()

    def save(self, step: int, state: PyTree[jax.Array | Pieces], facts: dict[str, object]) -> None:
        """Save `state` and `facts` (a JSON object, whose members may be bytes too) as the checkpoint of `step`, in the
        background.

        Returns once the arrays are copied to the host, so the caller may donate them at once, and arrays of pieces are
        written. A broken checkpoint of the same step is moved aside; an intact one is never touched.

        Raises:
            CheckpointError: the save before this one failed (then nothing is begun), the step is saved already, or the
                folder cannot be written to.
            TypeError, ValueError: a leaf is neither a `jax.Array` nor `Pieces`, or is empty, or `facts` is not JSON.
        """
        self.wait()
        leaves = named_leaves(state)
        check_arrays({name: leaf for name, leaf in leaves.items() if not isinstance(leaf, Pieces)})
        contents = {name: value for name, value in facts.items() if isinstance(value, bytes)}
        if contents:
            facts = {name: value for name, value in facts.items() if name not in contents}
            facts |= {CONTENTS: sorted(contents)}
        text = json.dumps(facts, indent=1, sort_keys=True) + "\n"
        self._clear_folder(step)
        files = {FACTS: text.encode()} | {file_of(name): value for name, value in contents.items()}
        processes.run_on_process_0(lambda: self._begin(step, files))
        self._saving = step
        try:
            self._arrays.start(self._path(step) / STATE, leaves)
        except Exception as error:  # All processes must learn of it: it is raised in wait(), where they synchronize.
            self._failure = error
        self._thread = threading.Thread(
            target=self._finish, args=(step, f"save-{next(_meetings)}"), name=f"checkpoint-{step}"
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until the checkpoint being written is complete on all processes.

        Raises:
            CheckpointError: it could not be written, and its files are deleted; the earlier ones are
                untouched. Raised once per failed save.
        """
        if self._thread is None:
            return
        self._thread.join()
        failure, self._thread, self._failure = self._failure, None, None
        best = processes.judged("" if failure is None else reason(failure), _most_informative)
        self._warn()
        if best is not None:
            if processes.is_first():
                self._failed.add(self._saving)
                self._clear_failed()
            raise CheckpointError(
                f"checkpoint {self._path(self._saving)} could not be written ({best}); "
                "its files are deleted, and the checkpoints before it are untouched"
            ) from failure

    @property
    def complete(self) -> bool:
        """Whether the last save has succeeded, as far as this process knows; on process 0, for all processes."""
        return self._thread is not None and not self._thread.is_alive() and self._failure is None

    def close(self) -> None:
        """Wait for the checkpoint being written and release the threads.

        Raises:
            CheckpointError: as `wait`.
        """
        try:
            self.wait()
        finally:
            self._arrays.close()
            self._clear_failed()

    def latest(self) -> int | None:
        """The newest step whose checkpoint is complete and intact; None where there is none.

        Every byte of it is read, by one of the processes. Newer ones that are half-written or corrupt are reported, one
        sentence each, and left alone.

        Raises:
            CheckpointError: the folder cannot be read.
        """
        self.wait()
        for step in reversed(processes.run_on_process_0(self._listed_steps)):
            damage = self._damage(step)
            if damage is None:
                return step
            if processes.is_first():
                self._report(f"checkpoint {self._path(step)} is skipped, because {damage}")
        return None

    def last_healthy(self, step: int) -> int | None:
        """The newest step up to `step` whose checkpoint is complete and healthy; None where there is none.

        Names, sizes and facts are checked, not every byte.
        """
        self.wait()
        return processes.run_on_process_0(lambda: retention.last_healthy(self.folder, step))

    def facts(self, step: int) -> dict[str, object]:
        """The facts that were saved with a step.

        Raises:
            CheckpointError: there is no such checkpoint, or its facts are damaged.
        """
        self.wait()
        return processes.run_on_process_0(lambda: self._read_facts(step))

    def contents(self, step: int) -> dict[str, bytes]:
        """The facts of a step that are bytes, by name; each process reads them.

        Raises:
            CheckpointError: there is no such checkpoint, or one is damaged.
        """
        return read_contents(self._path(step), self.facts(step))

    def restore[State](self, step: int, like: State, optional: Sequence[str] = ()) -> State:
        """The state saved at `step`, bit for bit, with the structure and shardings of `like`.

        Args:
            step: a step with an intact checkpoint; `latest` gives one. Its files are verified, unless this checkpointer
                has just done so.
            like: the wanted state: leaves with shape, dtype and sharding (`jax.ShapeDtypeStruct` or `jax.Array`), or
                `Pieces`. The shardings may be over any mesh; the shapes and dtypes must be the saved ones.
            optional: parts of the state, such as `carried/residual`, that may be saved and not wanted, or wanted and
                not saved. Each is read only if its saved leaves are the wanted ones; else its leaves are None.

        Raises:
            CheckpointError: there is no such checkpoint, it is damaged, or a leaf is missing, left over, or of another
                shape or dtype.
        """
        self.wait()
        self._check_intact(step)
        path = self._path(step)
        try:
            with manifest.view(path) as seen:
                return self._read(seen / STATE, like, path, optional)
        except Damage as damage:
            raise CheckpointError(f"checkpoint {path} cannot be used, because {damage}") from damage
        except OSError as error:
            raise CheckpointError(f"checkpoint {path} could not be read ({reason(error)})") from error

    def _read[State](self, arrays: Path, like: State, path: Path, optional: Sequence[str]) -> State:
        """The state from the folder `arrays` in a view of the checkpoint at `path`."""
        saved = self._arrays.specs(arrays)
        wanted = named_leaves(like)
        names = list(wanted)
        for prefix in optional:
            if (saved_part := part(saved, prefix)) != specs(wanted_part := part(wanted, prefix)):
                wanted = {name: leaf for name, leaf in wanted.items() if name not in wanted_part}
                saved = {name: spec for name, spec in saved.items() if name not in saved_part}
        check_same(saved, specs(wanted), str(path))
        try:
            restored = self._arrays.read(arrays, wanted)
        except ValueError as error:
            raise CheckpointError(f"checkpoint {path} could not be read ({reason(error)})") from error
        return jax.tree.unflatten(jax.tree.structure(like), [restored.get(name) for name in names])

    def _finish(self, step: int, meeting: str) -> None:
        """Background: wait for Orbax, seal the checkpoint, and delete old ones on process 0."""
        if self._failure is not None:
            return
        path = self._path(step)
        try:
            self._arrays.finish()
            sealing.seal(path, step, self._arrays.written(path / STATE), meeting=meeting)
            if processes.is_first():
                self._prune(step)
        except Exception as error:  # Raised in wait(), where the processes synchronize.
            self._failure = error

    def _clear_folder(self, step: int) -> None:
        """Move aside what is in the place of a new checkpoint; an intact one stays, and is an error."""
        if not processes.run_on_process_0(lambda: self._is_occupied(step)):
            return
        path, damage = self._path(step), self._damage(step)
        if damage is None:
            raise CheckpointError(f"checkpoint {path} exists already and is intact: nothing was written")
        processes.run_on_process_0(lambda: self._move_aside(step, damage))

    def _damage(self, step: int) -> str | None:
        """Read the whole checkpoint of a step, all processes together; returns why it is not intact, or None."""
        self._verified.discard(step)
        damage = sealing.damage(self._path(step))
        if damage is None:
            self._verified.add(step)
        return damage

    def _check_intact(self, step: int) -> None:
        processes.run_on_process_0(lambda: self._check_exists(step))
        # latest() has usually just read all of it.
        if step not in self._verified and (damage := self._damage(step)) is not None:
            raise CheckpointError(f"checkpoint {self._path(step)} cannot be used, because {damage}")

    def _path(self, step: int) -> Path:
        return folders.step_folder(self.folder, step)

    def _warn(self) -> None:
        """Report the background thread's sentences, from the main thread."""
        notes, self._notes = self._notes, []
        for note in notes:
            self._report(note)

    # Below: on process 0 only.

    def _is_occupied(self, step: int) -> bool:
        """Whether anything is in the place of a new checkpoint, now that the remains of failed saves are deleted."""
        self._clear_failed()
        self._failed.discard(step)
        return os.path.lexists(self._path(step))

    def _move_aside(self, step: int, damage: str) -> None:
        path = self._path(step)
        try:
            aside = folders.move_aside(path)
        except OSError as error:
            raise CheckpointError(f"checkpoint {path} could not be written ({reason(error)})") from error
        self._report(f"checkpoint {path} was moved aside to {aside.name}, because {damage}")

    def _begin(self, step: int, files: Mapping[str, bytes]) -> None:
        """Make the folder of a new checkpoint, with the files of its facts."""
        path, made = self._path(step), False
        try:
            try:
                path.mkdir()
            except FileNotFoundError:
                if self._existed:  # It is gone, or its disk is: a folder is not made anew on another disk.
                    raise
                self.folder.mkdir()
                path.mkdir()
            made = self._existed = True
            for name, contents in files.items():
                (path / name).write_bytes(contents)
        except OSError as error:
            if made:
                self._failed.add(step)
                self._clear_failed()
            raise CheckpointError(f"checkpoint {path} could not be written ({reason(error)})") from error

    def _clear_failed(self) -> None:
        """Delete the remains of failed saves: on a full disk they would take the space that everything else needs.

        Done more than once, because writes in flight when a save failed may land after the deletion.
        """
        for step in self._failed:
            path = self._path(step)
            try:
                if path.exists():
                    folders.remove(path)
            except OSError as error:
                self._report(f"checkpoint {path} is incomplete and could not be deleted ({reason(error)})")

    def _prune(self, step: int) -> None:
        try:
            retention.prune(self.folder, step, self._keep_last, self._keep_every, self._spared())
        except OSError as error:
            self._notes.append(f"an old checkpoint in {self.folder} could not be deleted ({reason(error)})")

    def _listed_steps(self) -> list[int]:
        try:
            return folders.listed_steps(self.folder)
        except OSError as error:
            raise CheckpointError(f"checkpoint folder {self.folder} cannot be read ({reason(error)})") from error

    def _check_exists(self, step: int) -> None:
        if not self._path(step).is_dir():
            steps = ", ".join(map(str, folders.listed_steps(self.folder))) or "none"
            raise CheckpointError(f"there is no checkpoint of step {step} in {self.folder} (steps there: {steps})")

    def _read_facts(self, step: int) -> dict[str, object]:
        self._check_exists(step)
        return read_facts(self._path(step))


def _most_informative(reasons: list[str]) -> str | None:
    """The reason of the process that failed, rather than of one that waited for it; None where none failed."""
    return min(filter(None, reasons), key=lambda text: text.startswith("TimeoutError"), default=None)

"""The buffer of a job of several processes whose answers process 0 alone draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jaxpar.checkpoint.processes import bytes_of_process_0, is_first, run_on_process_0
from jaxpar.mesh.parameters import Weights
from jaxpar.rl.prompts import Prompt
from jaxpar.rl.sampling.buffer import Draw, DrawOthers, RolloutBuffer
from jaxpar.rl.sampling.rollouts import Rollouts, SavedRollouts


class SharedBuffer:
    """A `RolloutBuffer` of process 0, whose batches every process gets, in the form of a checkpoint.

    Every process calls every method but `close`, in the same order on its main thread: there the weights are
    transferred, by all together, and batches are handed over. The thread of process 0 draws and nothing else, so that
    it may be early or late. What fails on process 0 is raised on all.

    Args:
        draw: draws a batch on process 0.
        transfer: puts the weights of the trainer where `draw` takes them; collective.
        prompts: the prompts of a batch.
        lag, newest: see `RolloutBuffer`.
    """

    def __init__(
        self, draw: Draw, transfer: Callable[[Weights], Weights], prompts: Callable[[int], Sequence[Prompt]], lag: int,
        *, newest: bool,
    ):  # fmt: skip
        self._transfer, self._prompts = transfer, prompts
        self._local = RolloutBuffer(draw, lambda weights: weights, lag, beside=True, newest=newest)
        self.following = 0
        """See `RolloutBuffer`; after `take`, `settled` and `restore`."""
        self.dropped = 0

    def refresh(self, version: int, weights: Weights) -> None:
        """See `RolloutBuffer`."""
        transferred = self._transfer(weights)
        if is_first():
            self._local.refresh(version, transferred)

    def take(self, version: int) -> Rollouts:
        """See `RolloutBuffer`."""
        (batch,) = self._shared(lambda: [self._local.take(version)], self._prompts)
        return batch

    def beside(self, draw: DrawOthers, prompts: Sequence[Prompt], weights: Weights) -> Rollouts:
        """See `RolloutBuffer`."""
        transferred = self._transfer(weights)
        (drawn,) = self._shared(lambda: [self._local.beside(draw, prompts, transferred)], lambda _: prompts)
        return drawn

    def settled(self) -> Sequence[Rollouts]:
        """See `RolloutBuffer`."""
        return self._shared(self._local.settled, self._prompts)

    def restore(self, following: int, dropped: int, waiting: Sequence[Rollouts]) -> None:
        """See `RolloutBuffer`."""
        run_on_process_0(lambda: self._local.restore(following, dropped, waiting))
        self.following, self.dropped = following, dropped

    def close(self) -> None:
        """See `RolloutBuffer`."""
        self._local.close()

    def _shared(
        self, batches: Callable[[], Sequence[Rollouts]], prompts: Callable[[int], Sequence[Prompt]]
    ) -> Sequence[Rollouts]:
        """Batches of process 0."""

        def saved() -> bytes:
            waiting = batches()
            return SavedRollouts(self._local.following, self._local.dropped, waiting).to_bytes()

        made = SavedRollouts.from_bytes(bytes_of_process_0(saved), prompts)
        self.following, self.dropped = made.following, made.dropped
        return made.waiting

"""A run as an object: `Trainer(config)` with `.step()`, `.evaluate()` and `.fit()`."""

from __future__ import annotations

from collections.abc import Iterable

from jaxpar.observe.events import Listener, Summary
from jaxpar.training.run.listeners import default_listeners
from jaxpar.training.run.loop import fit
from jaxpar.training.run.out_of_memory import explained
from jaxpar.training.run.run import Run


class Trainer(Run):
    """A run with its training loop. Only `fit` writes files."""

    def fit(self, listeners: Iterable[Listener] | None = None) -> Summary:
        """Train to `run.steps`, evaluating and saving on the way; continues a run that its folder holds.

        Args:
            listeners: what is notified of the run; by default the screen and the files of the run's folder.

        Raises:
            UserError: the folder belongs to another run, or cannot be written.
            TrainingError: the run had to stop.
        """
        # Steps run asynchronously: an out-of-memory error may be raised wherever a result is waited for.
        with explained(self.layout, self.mesh, self.needed):
            return fit(self, default_listeners(self.config) if listeners is None else listeners)

"""A window of steps under the JAX profiler (`run.profile`)."""

from __future__ import annotations

import jax
from jaxtyping import PyTree


def step_annotation(step: int) -> jax.profiler.StepTraceAnnotation:
    """Context manager that marks a step in a trace; outside a trace it costs about a microsecond."""
    return jax.profiler.StepTraceAnnotation("train", step_num=step)


class ProfileWindow:
    """Traces steps `first` to `last`, both included, into `folder` (read it with TensorBoard or xprof).

    Processes of one host need a folder each: the profiler names its files after the host.
    """

    def __init__(self, first: int, last: int, folder: str) -> None:
        assert 1 <= first <= last, (first, last)
        self.first, self.last, self.folder = first, last, folder
        self._tracing = False

    def before_step(self, step: int) -> None:
        """Start the trace if the window begins here; a run that resumes inside the window starts at once."""
        if not self._tracing and self.first <= step <= self.last:
            jax.profiler.start_trace(self.folder)
            self._tracing = True

    def stops_after(self, step: int) -> bool:
        """Whether `after_step` of this step writes the trace, which is slow."""
        return self._tracing and step >= self.last

    def after_step(self, step: int, results: PyTree = None) -> None:
        """Stop the trace after the last step, once the device has computed `results` (any tree of arrays)."""
        if self.stops_after(step):
            jax.block_until_ready(results)
            self.close()

    def close(self) -> None:
        """Stop the trace where one is running: what was traced so far is written."""
        if self._tracing:
            self._tracing = False
            jax.profiler.stop_trace()

"""The error of a run that stops early for a reason other than its configuration."""

from __future__ import annotations


class TrainingError(RuntimeError):
    """One sentence that states what happened to the run, and where its last checkpoint is."""

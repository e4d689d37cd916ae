"""Why a run stops before its end through no mistake of the user's configuration."""

from __future__ import annotations


class TrainingError(RuntimeError):
    """One sentence that says what happened to the run, and where its last checkpoint is."""

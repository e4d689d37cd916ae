"""The attention of a plan, as the function that the model calls."""

from __future__ import annotations

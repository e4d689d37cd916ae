"""Checks of an installation, a machine and a job before a run."""

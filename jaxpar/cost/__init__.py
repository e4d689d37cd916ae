"""Seconds of operations, messages and layers on GPUs of the catalogue: the one clock of planner, remat and reports."""

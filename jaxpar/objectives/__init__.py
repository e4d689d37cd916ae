"""Objectives that a step minimizes, a file for each."""

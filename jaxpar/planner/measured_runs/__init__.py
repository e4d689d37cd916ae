"""Measured runs: rows of a CSV file as models, layouts and clusters, and what they change about predictions."""

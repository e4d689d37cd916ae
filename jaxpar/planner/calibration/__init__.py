"""Measures what a machine reaches, for the time model."""

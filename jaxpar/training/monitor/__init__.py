"""Monitors of a run: losses that are not finite, spikes, stragglers."""

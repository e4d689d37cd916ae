"""Seconds of a step, predicted: layers, pipeline ticks, messages, the update."""

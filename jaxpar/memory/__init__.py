"""Activations between forward and backward: saved, offloaded or recomputed."""

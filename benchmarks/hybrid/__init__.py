"""Hybrid stacks beside dense ones: what they learn, and their memory and time by the length of a row."""

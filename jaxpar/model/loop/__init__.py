"""The loop over a chunk's stacked layers, forward and backward, and what it keeps between the two."""

"""Blocks before the first layer, which make the residual stream from a batch."""

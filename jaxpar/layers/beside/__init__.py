"""Blocks that read what is carried beside the residual stream."""

"""Layouts placed on nodes: measured bandwidths, GPUs of several kinds."""

"""Compiles training steps with XLA's GPU compiler for clusters that need not be present."""

"""What XLA's GPU compiler makes of a training step, for a cluster that need not be at hand."""

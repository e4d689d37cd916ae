"""Training: the step, the run loop, the run folder and the anomaly monitor."""

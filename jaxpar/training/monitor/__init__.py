"""What watches a run for anomalies: losses that are not finite, spikes, stragglers."""

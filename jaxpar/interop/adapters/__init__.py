"""Low-rank adapters of a model: read from folders, several side by side, or merged."""

"""The folder of a run: its lock, its checkpoints, and whether a configuration may continue in it."""

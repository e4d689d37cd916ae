"""One training step as compiled functions, and its batch."""

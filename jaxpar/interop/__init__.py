"""Models in Hugging Face's format: one table per family, read both ways."""

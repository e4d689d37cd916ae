"""Weights that are read by parts: folders in Hugging Face's format and checkpoints."""

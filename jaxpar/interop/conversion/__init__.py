"""Hugging Face folders and checkpoints as `python -m jaxpar.convert` writes them, checked by converting back."""

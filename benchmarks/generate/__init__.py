"""Generation side by side with transformers on one CPU, and alone on a GPU."""

"""What a run is laid out on: GPUs with their published peaks and memory."""

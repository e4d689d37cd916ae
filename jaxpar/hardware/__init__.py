"""GPUs, links and clusters with their published numbers, and the XLA flags of each GPU."""

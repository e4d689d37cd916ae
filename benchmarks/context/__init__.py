"""`python -m benchmarks.context`: context strategies on CPU devices; the tiled loss and MLP on one GPU."""

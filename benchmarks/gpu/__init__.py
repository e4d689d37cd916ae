"""One command for one GPU: checks kernels, compares their speed, and measures memory limits and a training step."""

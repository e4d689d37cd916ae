"""`python -m benchmarks.pipeline`: executed pipeline ticks beside simulated ones, on CPU devices."""

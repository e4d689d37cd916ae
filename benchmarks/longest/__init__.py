"""`python -m benchmarks.longest`: the longest row that fits, by compiling."""

"""A run from start to end: the loop, evaluation, sampling, the printed plan."""

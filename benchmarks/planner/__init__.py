"""`python -m benchmarks.planner` and `benchmarks.planner.memory`: the planner's models against measurements."""

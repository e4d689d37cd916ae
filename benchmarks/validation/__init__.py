"""`python -m benchmarks.validation`: the planner's time model against published runs of other systems."""

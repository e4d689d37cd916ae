"""The planner's models against programs that XLA compiles, and its choices."""

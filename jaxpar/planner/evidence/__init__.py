"""What the planner's predictions are compared with: published runs, and the programs that XLA compiles."""

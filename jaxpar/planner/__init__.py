"""The planner: predicts how long a step takes and what it holds on any layout, and finds the best."""

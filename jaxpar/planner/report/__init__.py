"""Output of the planner: tables, explanations, JSON and pages."""

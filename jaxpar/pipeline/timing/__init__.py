"""Schedules in time: durations, simulation, closed formulas of the papers, chunks in flight."""

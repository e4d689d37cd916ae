"""Pipelines as data: a schedule is a table of actions, and one executor runs any table."""

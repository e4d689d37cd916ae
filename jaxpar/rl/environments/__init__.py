"""Environments: conversations of several turns, in which code answers what the model says."""

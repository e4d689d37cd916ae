"""Checks of a configuration that need the declared weights of its layers."""

"""Families with experts, and the dense ones that share their tables."""

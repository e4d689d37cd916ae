"""Families of models with state-space or linear attention layers, a table of tensors for each."""

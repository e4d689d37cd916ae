"""Typed records of XLA:GPU's scheduled program, and what they cost. Pure Python and NumPy; nothing else reads HLO."""

"""Axes, rules, placements and the verbs that move tensors between them."""

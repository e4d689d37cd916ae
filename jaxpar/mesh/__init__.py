"""The device mesh: axes, rules, placements, and the collectives that move tensors between them."""

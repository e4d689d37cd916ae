"""Answers that are drawn ahead of the steps that learn from them: their versions, their buffer, and the sampler's mesh."""

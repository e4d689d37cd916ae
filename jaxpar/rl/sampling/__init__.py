"""Answers that are drawn ahead of the steps that learn from them: their versions and buffer, the sampler's mesh."""

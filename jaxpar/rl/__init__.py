"""Reinforcement: prompts, answers that the model draws, their rewards, and the batches that a step learns from."""

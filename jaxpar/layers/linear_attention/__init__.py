"""Mixers with a state of constant size: linear attention and state space models."""

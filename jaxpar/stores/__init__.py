"""Stores: sources of the layers' weights in a step, and destinations of their gradients."""

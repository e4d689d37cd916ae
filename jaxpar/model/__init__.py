"""The decoder in Flax NNX, its loss, and the loop over its layers."""

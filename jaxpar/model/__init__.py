"""The decoder in Flax NNX: embeddings and head, its loss, its FLOPs, and the loop over its layers (`loop/`)."""

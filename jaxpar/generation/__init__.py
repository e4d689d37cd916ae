"""Text from a model: a cache of keys and values, prompts and tokens through the layers, and sampling."""

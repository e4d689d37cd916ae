"""A part of a layer declares its weights, named activations and operations, as modules create and name them."""

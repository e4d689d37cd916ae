"""What a part of a layer declares: its weights, named activations and operations; how modules create and name them."""

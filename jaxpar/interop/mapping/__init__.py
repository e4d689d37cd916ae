"""What a family's table is made of: tensors, the form of our weights in them, and keys of `config.json`."""

"""The parts of a family's table: tensors, the form of our weights in them, and keys of `config.json`."""

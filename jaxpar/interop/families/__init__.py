"""The table of each family of models: its tensors and the keys of its `config.json`."""

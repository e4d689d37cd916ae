"""Reads files and `--set` into a configuration: YAML, names from elsewhere, types, what is unused."""

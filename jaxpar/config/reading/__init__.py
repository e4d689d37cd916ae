"""From files and `--set` to a configuration: YAML, names from elsewhere, types, what is unused."""

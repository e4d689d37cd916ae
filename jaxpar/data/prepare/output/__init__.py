"""The output: tokens of units, joined into shards, each file written atomically."""

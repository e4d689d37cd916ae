"""What is written: tokens of a unit, units put together as shards, each file atomically."""

"""The costs of each op: matrix products, other arithmetic, bytes that it reads and writes."""

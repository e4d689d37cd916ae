"""What each op costs: matrix products, other arithmetic, bytes that it reads and writes."""

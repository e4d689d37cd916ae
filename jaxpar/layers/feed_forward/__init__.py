"""Feed-forwards: what all have in common (`base.py`), with a gate and without."""

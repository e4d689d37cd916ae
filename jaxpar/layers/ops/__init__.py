"""Matmuls of a layer: plain ones (`plain.py`), quantized ones, and taps that split a backward."""

"""Transport of weights and gradients between ranks: quantized, and in two levels inside and between nodes."""

"""How weights and gradients travel between ranks: quantized, and in two levels inside and between nodes."""

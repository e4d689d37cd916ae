"""How weights and gradients travel between ranks: quantised, and in two levels inside and between nodes."""

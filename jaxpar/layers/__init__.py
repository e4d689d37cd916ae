"""The parts of a decoder layer, each declared once: norms, attention, feed-forwards, and what they are made of."""

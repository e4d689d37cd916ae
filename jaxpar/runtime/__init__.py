"""What a training step is made of. It names no feature: features plug in through the protocols here."""

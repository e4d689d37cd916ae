"""The parts of a training step. They name no feature: features plug in through the protocols here."""

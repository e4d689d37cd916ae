"""The search for layouts: the space, what fits, candidates and their order."""

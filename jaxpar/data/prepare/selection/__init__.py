"""Documents that a preparation leaves out: by patterns, by a user's function, duplicates, and texts of evaluations."""

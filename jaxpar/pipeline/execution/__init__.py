"""The program of a schedule, and the loop over microbatches that runs it."""

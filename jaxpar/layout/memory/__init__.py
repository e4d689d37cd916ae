"""The estimate of a step's memory, whether a layout fits, and what to change if it does not."""

"""The step, the loop around it, evaluation and sampling."""

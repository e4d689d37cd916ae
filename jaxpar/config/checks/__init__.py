"""Checks between keys, each a function of a `Config` that raises `UserError`; `validate.py` runs them in order."""

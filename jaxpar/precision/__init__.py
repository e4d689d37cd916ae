"""Dtypes per role and loss scaling."""

"""Conversations as text and tokens: chat templates, rendered in a process of their own, and the tokens that count."""

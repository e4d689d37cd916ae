"""From nothing to a chat model, in stages: `python -m recipes.chat`."""

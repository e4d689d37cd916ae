"""Linear attention: a state that passes through chunks of tokens."""

"""Layers of experts: routers and their losses, dispatch of tokens, their exchange between ranks, grouped products."""

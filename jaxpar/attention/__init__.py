"""Attention backends and context-parallel strategies: registries, each with a chooser that says why."""

from jaxpar.attention.attend import attend
from jaxpar.attention.backends import BACKENDS, choose_backend
from jaxpar.attention.context import CONTEXT_STRATEGIES, choose_context_strategy
from jaxpar.attention.request import AttentionRequest

__all__ = [
    "BACKENDS",
    "CONTEXT_STRATEGIES",
    "AttentionRequest",
    "attend",
    "choose_backend",
    "choose_context_strategy",
]

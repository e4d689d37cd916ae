"""Attention backends and context-parallel strategies: registries, each with a chooser that gives its reason."""

from jaxpar.attention.attend import attend
from jaxpar.attention.backends import BACKENDS, choose_backend
from jaxpar.attention.context import CONTEXT_STRATEGIES, choose_context_strategy, context_layout
from jaxpar.attention.request import AttentionRequest
from jaxpar.attention.row import ContextLayout, RowTokens

__all__ = [
    "BACKENDS",
    "CONTEXT_STRATEGIES",
    "AttentionRequest",
    "ContextLayout",
    "RowTokens",
    "attend",
    "choose_backend",
    "choose_context_strategy",
    "context_layout",
]

"""Linear attention: a state that passes through chunks of tokens."""

from pallas_kernels.linear_attention.api import scan_chunks
from pallas_kernels.linear_attention.chunk import CHUNK, Chunk

__all__ = ["CHUNK", "Chunk", "scan_chunks"]

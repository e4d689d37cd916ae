"""Data: sources, packing, and a loader whose batch is a function of the step. Nothing here imports JAX."""

from jaxpar.data.baseline import bigram_loss
from jaxpar.data.loader import Batch, batch_index, batch_rows, batches
from jaxpar.data.packing import PackedRows, Row, Rows
from jaxpar.data.sources import Data, open_data
from jaxpar.data.stream import TokenStream, prompt

__all__ = [
    "Batch",
    "Data",
    "PackedRows",
    "Row",
    "Rows",
    "TokenStream",
    "batch_index",
    "batch_rows",
    "batches",
    "bigram_loss",
    "open_data",
    "prompt",
]

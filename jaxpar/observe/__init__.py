"""The output of a run: console, metric files, TensorBoard, plots, profiles, memory and time.

The trainer calls a `Listener`; everything that writes is one (`events.py` explains how to add another).
`print(memory_report())` shows what is in memory now.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxpar.observe.holdings import MemoryReport, memory_report

__all__ = ["MemoryReport", "memory_report"]


def __getattr__(name: str) -> object:
    # Pages and plots of runs are made without JAX, which the memory report needs.
    if name in __all__:
        from jaxpar.observe import holdings

        return getattr(holdings, name)
    raise AttributeError(name)

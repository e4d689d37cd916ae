"""What a run tells: the console, metric files, TensorBoard, plots, profiles, memory and time.

The trainer calls a `Listener`; everything that writes is one (`events.py` says how to add another).
`print(memory_report())` shows what lies in memory now.
"""

from typing import Any

__all__ = ["MemoryReport", "memory_report"]


def __getattr__(name: str) -> Any:
    # Pages and pictures of runs are made without JAX, which the report of memory needs.
    if name in __all__:
        from jaxpar.observe import holdings

        return getattr(holdings, name)
    raise AttributeError(name)

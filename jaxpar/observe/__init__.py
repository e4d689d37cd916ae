"""What a run tells: the console, metric files, TensorBoard, plots, profiles, memory and time.

The trainer calls a `Listener`; everything that writes is one (`events.py` says how to add another).
`print(memory_report())` shows what lies in memory now.
"""

from jaxpar.observe.holdings import MemoryReport, memory_report

__all__ = ["MemoryReport", "memory_report"]

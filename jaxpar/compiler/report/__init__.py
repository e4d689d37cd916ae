"""The report of a compiled step and its pictures: memory, transfers and time, read from XLA's program."""

from jaxpar.compiler.report.analysis import Analysis
from jaxpar.compiler.report.build import make_report
from jaxpar.compiler.report.record import Report

__all__ = ["Analysis", "Report", "make_report"]

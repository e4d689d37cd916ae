"""What a step will do on a cluster, read from the program that XLA made for it: the report and its pictures."""

from jaxpar.compiler.report.analysis import Analysis
from jaxpar.compiler.report.build import make_report
from jaxpar.compiler.report.record import Report

__all__ = ["Analysis", "Report", "make_report"]

"""The common parts of all commands."""

from jaxpar.cli.parser import Parser, by_ending, positive, seconds, size
from jaxpar.cli.running import command, report, run_command, stop, without_gpus

__all__ = [
    "Parser",
    "by_ending",
    "command",
    "positive",
    "report",
    "run_command",
    "seconds",
    "size",
    "stop",
    "without_gpus",
]

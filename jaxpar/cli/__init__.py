"""The common parts of all commands."""

from jaxpar.cli.parser import Parser, paths_by_suffix, positive, seconds, size
from jaxpar.cli.running import command, report, run_command, stop, without_gpus

__all__ = [
    "Parser",
    "command",
    "paths_by_suffix",
    "positive",
    "report",
    "run_command",
    "seconds",
    "size",
    "stop",
    "without_gpus",
]

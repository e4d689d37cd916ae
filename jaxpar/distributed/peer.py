"""Another process of the job, passed from the meeting to the watch."""

from __future__ import annotations

import socket
from dataclasses import dataclass


@dataclass(frozen=True)
class Peer:
    """Another process of the job, and the connection to it."""

    process: int
    host: str
    connection: socket.socket


class Refused(Exception):
    """The reason why a process is refused, or why the processes cannot meet: part of a sentence."""

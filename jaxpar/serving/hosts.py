"""Addresses that only this machine reaches."""

from __future__ import annotations

import ipaddress


def is_local(host: str) -> bool:
    """Whether a host is this machine, and nothing that another one could name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

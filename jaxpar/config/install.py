"""How the optional parts of jaxpar are installed."""

from __future__ import annotations


def install_command(extra: str) -> str:
    """The command that brings an extra, in the versions that jaxpar is tested with.

    From a checkout: there is no package of jaxpar on an index.
    """
    return f"pip install -e '.[{extra}]' -c constraints.txt (in the checkout of jaxpar)"

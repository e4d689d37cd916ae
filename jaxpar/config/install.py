"""Commands that install the optional parts of jaxpar."""

from __future__ import annotations


def install_command(extra: str) -> str:
    """The command that installs an extra, in the versions that jaxpar is tested with.

    It installs from a checkout: jaxpar is not on a package index.
    """
    return f"pip install -e '.[{extra}]' -c constraints.txt (in the checkout of jaxpar)"

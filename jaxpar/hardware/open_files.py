"""The limit of files that this process may have open."""

from __future__ import annotations

import resource


def allow_more_files(more: int) -> None:
    """Raise this process's limit by `more` files, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY:
        most = soft + more if hard == resource.RLIM_INFINITY else min(soft + more, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))

"""Checks of paths, before anything is read or written."""

from __future__ import annotations

from jaxpar.config.errors import UserError
from jaxpar.config.paths import user_path
from jaxpar.config.schema import Config
from jaxpar.config.spelling import quoted


def check_paths(config: Config) -> None:
    """Every path that a configuration names can be one. JAX itself reads `run.compile_cache`, also at a URL."""
    read = {
        "data.path": config.data.path,
        "data.heldout_path": config.data.heldout_path,
        "distributed.secret_file": config.distributed.secret_file,
        "parallel.schedule": config.parallel.schedule,
    }
    written = {"run.dir": config.run.dir, "memory.offload_dir": config.memory.offload_dir}
    for key, path in (*read.items(), *(("data.sources", path) for path in config.data.sources or ()), *written.items()):
        if path is not None:
            user_path(path, key, written=key in written)
            if not path.isprintable():  # The console prints it.
                raise UserError(f"{key}: {quoted(path)} has control characters; expected a path without")
    cache = config.run.compile_cache
    if cache is not None and "://" not in cache:
        user_path(cache, "run.compile_cache", written=True)

"""Checks of paths, before anything is read or written."""

from __future__ import annotations

from jaxpar.config.errors import UserError
from jaxpar.config.paths import user_path
from jaxpar.config.schema import Config
from jaxpar.config.spelling import quoted


def check_paths(config: Config) -> None:
    """Every path that a configuration names can be one. JAX itself reads `run.compile_cache`, also at a URL."""
    read = {
        "run.init_from": config.run.init_from,
        "loss.reference": config.loss.reference,
        "data.path": config.data.path,
        "data.heldout_path": config.data.heldout_path,
        "data.tokenizer": config.data.tokenizer,
        "data.routing": config.data.routing,
        "distributed.secret_file": config.distributed.secret_file,
        "parallel.schedule": config.parallel.schedule,
    }
    written = {
        "run.dir": config.run.dir,
        "islands.folder": config.islands.folder,
        "memory.offload_dir": config.memory.offload_dir,
        "rl.sampler.folder": config.rl.sampler.folder,
    }
    later = (path for one in config.data.later_sources for path in one.sources)
    sources = (("data.sources", path) for path in (*(config.data.sources or ()), *later))
    sets = ((f"data.heldout.{name}", path) for name, path in (config.data.heldout or {}).items())
    for key, path in (
        *read.items(),
        *sources,
        *sets,
        *written.items(),
        ("run.compile_cache", config.run.compile_cache),
    ):
        if path is None:
            continue
        if not path.isprintable():  # The console prints it.
            raise UserError(f"{key}: {quoted(path)} has control characters; expected a path without")
        if key != "run.compile_cache" or "://" not in path:
            user_path(path, key, written=key in written)

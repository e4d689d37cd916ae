"""Checks of paths, before anything is read or written."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path

from jaxpar.config.errors import UserError
from jaxpar.config.paths import user_location, user_path
from jaxpar.config.schema import Config
from jaxpar.config.spelling import quoted
from jaxpar.config.urls import path_of

STORED = (
    "run.init_from", "run.mirror", "loss.reference", "data.path", "data.validation_path", "data.tokenizer",
    "data.sources",
)  # fmt: skip
"""Keys that take the URL of an object store too."""

PATHS = (
    "run.init_from", "loss.reference", "data.path", "data.validation_path", "data.tokenizer", "data.routing",
    "distributed.secret_file", "parallel.schedule", "run.dir", "run.mirror", "islands.folder", "memory.offload_dir",
    "rl.sampler.folder", "run.compile_cache",
)  # fmt: skip
"""Keys whose value is one path. `data.sources`, `data.later_sources` and `data.validation` have several."""


def check_paths(config: Config) -> None:
    """Every path that a configuration names can be one. JAX itself reads `run.compile_cache`, also at a URL."""
    paths = {key: attrgetter(key)(config) for key in PATHS}
    later = (path for one in config.data.later_sources for path in one.sources)
    sources = (("data.sources", path) for path in (*(config.data.sources or ()), *later))
    sets = ((f"data.validation.{name}", path) for name, path in (config.data.validation or {}).items())
    for key, path in (*paths.items(), *sources, *sets):
        if path is None:
            continue
        if not path.isprintable():  # The console prints it.
            raise UserError(f"{key}: {quoted(path)} has control characters; expected a path without")
        if key in STORED or key.startswith("data.validation."):
            location = user_location(path, key, written=key == "run.mirror")
            if key == "run.mirror" and isinstance(location, Path):
                raise UserError(f"run.mirror: {quoted(path)} is a path; expected a URL, as in s3://bucket/runs")
        elif key != "run.compile_cache" or "://" not in path:
            user_path(path, key)
            if (plain := path_of(key, path)) != path:
                raise UserError(f"{key}: {quoted(path)} is a URL; expected the path {quoted(plain)}")

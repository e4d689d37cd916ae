"""Prints and draws the frontier: the work behind `python -m jaxpar.inspect --remat-frontier`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jaxpar.compiler.compile import plan_for
from jaxpar.compiler.inspection import check_writable, screen, way_out
from jaxpar.compiler.remat_frontier.frontier import make_frontier
from jaxpar.compiler.remat_frontier.picture import draw_frontier
from jaxpar.compiler.remat_frontier.text import print_frontier
from jaxpar.config import load_config
from jaxpar.config.strict_json import json_text
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.memory.remat import AUTO, DEFAULT


@dataclass(frozen=True)
class FrontierInspection:
    """What the user asked for."""

    config: Path
    cluster: str
    overrides: Sequence[str] = ()
    """`section.key=value`."""
    as_json: bool = False
    pictures: Sequence[Path] = ()
    """Files of the picture; the format follows from the name's ending, .svg or .png."""

    def run(self) -> None:
        """Search, and print. Raises `UserError` with one sentence."""
        for picture in self.pictures:
            check_writable(picture)
        config, cluster = load_config(self.config, self.overrides), parse_cluster(self.cluster)
        if config.memory.remat != AUTO:  # the frontier replaces the configured value, which may still be wrong
            plan_for(config, cluster)
        frontier = make_frontier(config, cluster, self.config.stem)
        if not frontier.fits:
            asked = replace(config, memory=replace(config.memory, remat=DEFAULT, offload_fraction=0.0))
            frontier = replace(frontier, way_out=way_out(asked, cluster))
        for picture in self.pictures:
            draw_frontier(frontier, picture)
        if self.as_json:
            print(json_text(frontier.to_dict(), indent=2))
            return
        console = screen()
        print_frontier(frontier, console)
        for picture in self.pictures:
            console.print(f"Picture: {picture}", soft_wrap=True, highlight=False)

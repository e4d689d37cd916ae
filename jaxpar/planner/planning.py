"""The work behind `python -m jaxpar.plan`: plans, on the screen and in files, for what the user typed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from jaxpar.compiler.cluster_parts import training_part
from jaxpar.compiler.compile import DEFAULT_CACHE, with_known_vocab
from jaxpar.compiler.report.screen import print_lines, screen
from jaxpar.config import Config, UserError, load_config
from jaxpar.config.schema import ParallelConfig
from jaxpar.config.schema.layout import fixed_for_planner
from jaxpar.config.strict_json import json_text
from jaxpar.hardware.cluster import Cluster
from jaxpar.layout import plan_file
from jaxpar.layout.checks.validate import validate
from jaxpar.pages.units import seconds
from jaxpar.planner.anchors import read_anchors
from jaxpar.planner.islands import Offers, has_slow_link, of_plan, offers, print_offers
from jaxpar.planner.machine import is_cpu, named_cluster
from jaxpar.planner.memo import no_collection
from jaxpar.planner.placement.measured import PLACED, measured
from jaxpar.planner.profile import Profile, read_profile
from jaxpar.planner.report import words
from jaxpar.planner.report.numbers import measured_words, numbers, reached_lines, source_lines, table_lookups
from jaxpar.planner.report.text import print_plans
from jaxpar.planner.rollouts import Split, draws_here, print_splits, splits
from jaxpar.planner.search.asked import parse_avoided, parse_fixed
from jaxpar.planner.search.candidate import Planned
from jaxpar.planner.search.idle import on_fewer_hosts
from jaxpar.planner.search.islands import search_of
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.stage_groups import check_stages
from jaxpar.planner.verified import Verified, print_verified, ranked, reason_against, verify


@dataclass(frozen=True)
class Planning:
    """The user's options."""

    config: Path
    cluster: str
    overrides: Sequence[str] = ()
    fixed: Sequence[str] = ()
    top: int = 5
    output: Path = Path("plan.json")
    json: bool = False
    verify: bool = True
    show_model: bool = False
    profile: Path | None = None
    timeout: float = 300
    """Seconds of all compiles together."""
    measured: Sequence[Path] = ()
    avoided: Sequence[str] = ()

    def run(self) -> None:
        """Search, print, and write. Raises `UserError` with one sentence."""
        cluster = named_cluster(self.cluster)
        config = planned_config(load_config(self.config, self.overrides))
        hardware = profile = None
        if self.profile is not None:
            hardware, cluster, profile = read_profile(self.profile, cluster)
        spread, line = read_anchors(self.measured, cluster, hardware) if self.measured else (None, None)
        fixed, avoided = parse_fixed(list(self.fixed)), parse_avoided(self.avoided)
        nodes = measured(cluster, hardware)
        where = training_part(config, cluster if nodes is None else nodes.cluster)
        asked = search_of(config, where, fixed, avoided, hardware)
        check_stages(asked.cluster, fixed)
        most = self.top if nodes is None else max(self.top, PLACED)
        search, plans, idle = best_with_idle_hosts(asked, most)
        factor, placed = 1.0 if spread is None else spread.factor, len(plans)
        if nodes is not None:
            plans = nodes.ranked(plans, search.timer)[: self.top]
        if spread is not None:
            plans = [one.on(spread) for one in plans]
        plan_file.write(self.output, plans[0].file(self.cluster))
        plans, verified, unverified = self._verified(plans, search)
        plan_file.write(self.output, plans[0].file(self.cluster))
        predicted = [plan if one is None else one.predicted for plan, one in zip(plans, verified, strict=True)]
        shared = splits(config, cluster, search, predicted[0]) if draws_here(config) else []
        islands = offers(asked, factor) if has_slow_link(asked) else None
        if self.json:
            self._print_json(plans, verified, unverified, shared, islands)
            return
        print_plans(plans, search.effort, screen(), plans if all(verified) else predicted)
        if shared:
            print_splits(shared, config.rl.mode, cluster, screen())
        if islands is not None:
            print_offers(islands, screen())
        notes = [*filter(None, (unverified, idle, line))]
        of_nodes = [] if nodes is None else nodes.words(plans[0], placed)
        self._print_details(plans[0], search, notes, of_nodes, profile)
        print_lines(screen(), f"Wrote {self.output}; run it with python -m jaxpar.train --plan {self.output}")

    def _print_json(
        self, plans: list[Planned], verified: list[Verified | None], unverified: str, shared: list[Split],
        islands: Offers | None,
    ) -> None:  # fmt: skip
        files = [one.file(self.cluster).to_dict() for one in plans]
        for file, one in zip(files, verified, strict=True):
            if one is not None:
                file["predicted"]["verified"] = one.to_dict()
            elif unverified:
                file["predicted"]["unverified"] = unverified
        if shared:
            files[0]["predicted"]["answers"] = [one.to_dict() for one in shared]
        if islands is not None:
            files[0]["predicted"]["islands"] = islands.to_dict()
        print(json_text(files, indent=2))

    def _verified(self, plans: list[Planned], search: Search) -> tuple[list[Planned], list[Verified | None], str]:
        """The plans in the order of their programs, what these take, and a sentence about plans that were not compiled
        though the user did not ask for that."""
        if not self.verify or is_cpu(search.cluster):
            return plans, [None] * len(plans), ""
        results, why = [], reason_against(search.cluster, search.space.config.islands)
        if not why:
            progress = Console(stderr=True, markup=False, highlight=False)
            results, why = verify(
                plans, search.reached, self.timeout, DEFAULT_CACHE, lambda text: print_lines(progress, text)
            )
        if results and not self.json:
            print_verified(results, screen())
        order = ranked(plans, results)
        left = ", ".join(str(index) for index, (_, result) in enumerate(order, 1) if result is None)
        sentence = f"Not compiled ({left} in the table): {why}" if left else ""
        return [planned for planned, _ in order], [result for _, result in order], sentence

    def _print_details(
        self, best: Planned, search: Search, notes: list[str], of_nodes: list[str], profile: Profile | None
    ) -> None:
        """Sentences on a plan besides its numbers."""
        if self.profile is not None and profile is not None:
            notes = [*notes, measured_words(self.profile, profile, table_lookups(search.timer, best.candidate.layout))]
        print_lines(screen(), *notes)
        for title, lines in (
            ("Stages", words.stages(best, search.timer)), ("Nodes", of_nodes), ("Islands", of_plan(best, search))
        ):  # fmt: skip
            if lines:
                print_lines(screen(), *lines, title=title)
        if self.show_model:
            constants, gpu = numbers(), search.cluster.gpu
            for title, lines in (
                ("What a GPU reaches", reached_lines(search.reached, gpu)),
                ("Assumed", source_lines(constants, "assumed")),
                ("From a source", source_lines(constants, "cited", "measured", "derived")),
                ("Limits and tolerances, which are in no time", source_lines(constants, "chosen")),
            ):
                print_lines(screen(), *lines, title=title)


@no_collection()
def best_with_idle_hosts(search: Search, number: int) -> tuple[Search, list[Planned], str | None]:
    """The best layouts on all hosts, or on fewer where those are faster; the search of them, and a sentence about it.

    Raises:
        UserError: there is no layout on all hosts, and none on the fewer that were tried.
    """
    cluster = search.cluster
    try:
        plans, why = search.best(number), None
    except UserError as error:
        plans, why = [], error
    best = plans[0].candidate.seconds if plans else float("inf")
    islands = search.space.config.islands.share_mesh  # they have all hosts
    fixed = len(cluster.groups) > 1 or cluster.bandwidth_file or islands
    other = None if fixed else on_fewer_hosts(search, best)
    if other is None:
        if why is not None:
            raise why
        return search, plans, None
    best_plans = other.best(number)
    all_hosts = f"all take {seconds(best)} a step" if plans else f"on all of them, {why}"
    idle = cluster.hosts - other.cluster.hosts
    return other, best_plans, f"{idle} of {cluster.hosts} hosts are left idle: {all_hosts}"


def planned_config(config: Config) -> Config:
    """`config` as the planner takes it: on one device, with the vocabulary set, and layers that keep what the presets
    name; keys that the planner does not search stay. Raises `UserError`."""
    memory = replace(
        config.memory, remat="gemm_last", offload_fraction=0.0, optimizer_offload="none",
        weights_offload="none", offload_dir=None, mlp_tiles=None,
    )  # fmt: skip
    config = replace(config, parallel=ParallelConfig(**fixed_for_planner(config.parallel)), memory=memory)
    overlap = replace(config.parallel.overlap, shard_state_over_replicas=False)  # it has no replicas
    validate(replace(config, parallel=replace(config.parallel, overlap=overlap)))
    return with_known_vocab(config)


def best_plan(config: Config, cluster: Cluster) -> Planned:
    """The best layout on `cluster`: what `parallel: auto` stands for. Raises `UserError`."""
    return search_of(planned_config(config), cluster).best(1)[0]


def hosts_of_one_kind(text: str) -> Cluster:
    """`--cluster` of a command that takes parts of it. Raises `UserError`."""
    cluster = named_cluster(text)
    if len(cluster.groups) > 1:
        raise UserError(f"--cluster {text}: expected hosts of one kind, of which there may be any number")
    return cluster

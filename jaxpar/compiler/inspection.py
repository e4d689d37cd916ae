"""The work behind `python -m jaxpar.inspect`: reports, on the screen and in files, of what the user typed."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from jaxpar.compiler.cluster_parts import training_part
from jaxpar.compiler.compile import DEFAULT_CACHE, compile_step, plan_for, with_known_vocab
from jaxpar.compiler.report import Analysis, Report, make_report
from jaxpar.compiler.report.build import with_utilisation
from jaxpar.compiler.report.layer_schedule import layer_schedules, layers_picture, turn_words
from jaxpar.compiler.report.page import html_page
from jaxpar.compiler.report.screen import INSPECT_WIDTH, screen
from jaxpar.compiler.report.tables import print_report
from jaxpar.config import Config, UserError, load_config
from jaxpar.config.strict_json import json_text
from jaxpar.hardware.cluster import Cluster, parse_cluster
from jaxpar.hardware.memory import pool_bytes
from jaxpar.layout.memory.estimate import estimate_memory
from jaxpar.layout.memory.nearest_fit import describe_fit, nearest_fit
from jaxpar.layout.step_layout import StepLayout


def inspect_step(options: Namespace, page: Path | None, picture: Path | None) -> None:
    """Compile, print, and write the files. Raises `UserError` with one sentence.

    Args:
        options: of the command line.
        page: where to write the HTML page.
        picture: where to write the picture of a layer.
    """
    for file in filter(None, (page, picture)):
        check_writable(file)
    cluster = parse_cluster(options.cluster)
    analysis, report = _report(options.config, options, cluster)
    if picture is not None:
        picture.write_text(_picture(analysis, report), encoding="utf-8")
    if page is not None:
        page.write_text(html_page(analysis, report), encoding="utf-8")
    if options.json:
        print(json_text(report.to_dict(), indent=2))
        return
    console = screen(INSPECT_WIDTH)
    print_report(report, console)
    for name, file in (("Page", page), ("Picture", picture)):
        if file is not None:
            console.print(f"{name}: {file}", soft_wrap=True, highlight=False)


def _picture(analysis: Analysis, report: Report) -> str:
    layers, turn = layer_schedules(analysis), turn_words(analysis.compilation.plan.layer_unroll.name)
    if not layers:
        raise UserError("--out: the program has no loop over layers; expected three layers or more of a kind")
    return layers_picture(layers, f"{report.config} on {report.cluster}: {turn}")


def _report(file: Path, options: Namespace, cluster: Cluster) -> tuple[Analysis, Report]:
    config, errors = load_config(file, options.overrides), Console(stderr=True, markup=False)
    cluster = training_part(config, cluster)
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    hidden = not errors.is_terminal
    with Progress(*columns, console=errors, transient=True, refresh_per_second=4, disable=hidden) as progress:
        task = progress.add_task(f"Compiling {file.stem} for {cluster.devices} x {cluster.gpu.name} ...")
        cache = None if options.no_cache else DEFAULT_CACHE
        analysis = Analysis(compile_step(config, cluster, timeout_s=options.timeout, cache=cache), cluster)
        report = with_utilisation(make_report(analysis, file.stem), with_known_vocab(config), cluster.gpu)
        if not report.fits:
            progress.update(task, description="It does not fit: looking for what does ...")
            report = replace(report, way_out=way_out(config, cluster, report.allocated_bytes))
    return analysis, report


def way_out(config: Config, cluster: Cluster, needed: int | None = None) -> str:
    """The nearest settings that fit `cluster`, or a sentence that none do, by estimates and without compiling.

    Args:
        config: what does not fit.
        cluster: where.
        needed: XLA's number for it, in bytes on a GPU.
    """
    config, plan = plan_for(config, cluster)

    def rebuild(changed: Config) -> StepLayout:
        layout = StepLayout(*plan_for(changed, cluster))
        on_host, limit = estimate_memory(layout.config, layout.plan).host, cluster.host_limit(config.memory.host_limit)
        if layout.plan.optimizer_offload != "file" and on_host > limit:
            raise UserError(f"memory.host_limit: {limit} bytes, and {on_host} are needed for each device")
        return layout

    return describe_fit(nearest_fit(StepLayout(config, plan), pool_bytes(cluster.device_bytes), rebuild, needed))


def check_writable(page: Path) -> None:
    """Raises `UserError` for a file that could not be written once the compile is over."""
    if not page.parent.is_dir():
        raise UserError(f"--out {page}: the folder {page.parent} does not exist")
    if page.is_dir():
        raise UserError(f"--out {page}: a folder, expected the name of a file")
    new = not page.exists()
    try:
        page.open("a").close()
        if new:
            page.unlink()
    except OSError as error:
        raise UserError(f"--out {page}: cannot be written ({error.strerror})") from error

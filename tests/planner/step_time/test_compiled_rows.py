"""Rows of compiled programs beside the planner, and one compiled again: what its messages need and wait for."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from benchmarks.planner import compiled as compiling
from benchmarks.planner.compiled import Program, compiled, laid_out, prepared, read_programs, shares, write_rows
from benchmarks.planner.parts import counts_of, read_parts, rows_of, times_of, write_parts
from jaxpar.compiler.program.costs.ops import KINDS
from jaxpar.config.presets import PRESETS
from jaxpar.cost.layer_case import layer_cases
from jaxpar.cost.layout import Layout, Remat
from jaxpar.hardware.cluster import Cluster, parse_cluster
from jaxpar.memory.layer_shape import activation_bytes
from jaxpar.planner.step_time.layer_times import copied_bytes
from jaxpar.planner.step_time.model import StepTime, step_time
from tests.compiler.inspected import inspected, wide
from tests.selection import commits_hash, drawn
from tests.sentences import refused

PROGRAMS = read_programs()
KNOWN = [one for one in PROGRAMS if one.config not in ("llama3_70b", "llama3_405b", "gpt3_175b_32k")]
"""Those that compile in a minute or two."""
COPIES = [one for one in PROGRAMS if one.needed.get("host")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One of the rows that compile soon, another in another draw; the others before a release."""
    if "known_row" not in metafunc.fixturenames:
        return
    chosen = drawn([one.command for one in KNOWN], 1, metafunc.config.getoption("--draw") or commits_hash())
    level = lambda one: pytest.mark.long if one.command in chosen else pytest.mark.release
    rows = [pytest.param(one, marks=level(one), id=f"{one.mesh} row {PROGRAMS.index(one) + 1}") for one in KNOWN]
    metafunc.parametrize("known_row", rows)


def test_a_program_still_has_the_parts_that_its_row_states(known_row: Program):
    """Work, bytes and executions by kind, and what the schedule hides."""
    row = known_row
    again = compiled(row)
    assert again.mesh == row.mesh
    before, after = counts_of(row.parts), counts_of(again.parts)
    assert before.keys() == after.keys()
    for kind, (times, moved, flops) in before.items():
        assert after[kind][2] == pytest.approx(flops), kind
        assert after[kind][1] == pytest.approx(moved, rel=0.02), kind
        assert kind in KINDS or after[kind][0] == times
    for name, needed in row.needed.items():
        assert again.needed[name] == pytest.approx(needed, rel=0.03, abs=1e-3 * row.compute), name
        if needed > 1e-3 * row.compute:
            share, stated = again.exposed[name] / again.needed[name], row.exposed[name] / needed
            assert share == pytest.approx(stated, abs=0.02), name


@pytest.mark.parametrize("row", KNOWN, ids=lambda one: f"{one.mesh} {one.cluster}")
def test_parts_are_read_as_they_were_written(row: Program, tmp_path: Path):
    file = tmp_path / "parts.csv"
    write_parts({row.key: row.parts}, file)
    assert read_parts(file) == {row.key: row.parts}
    total = sum(row.times.step.seconds_by_kind.values())
    assert total == pytest.approx(row.times.step.seconds) and row.compute < total


def test_parts_are_of_the_row_that_they_name(tmp_path: Path):
    rows, parts = tmp_path / "compiled.csv", tmp_path / "parts.csv"
    one, other = KNOWN[:2]
    write_rows([one, other], rows, parts)
    assert read_programs(rows, parts) == [one, other]
    write_rows([other, one], rows, tmp_path / "others.csv")
    assert read_programs(rows, parts) == [other, one], "in another order"
    changed = replace(one, overrides=("model.layers=2",))
    write_rows([changed, other], rows, tmp_path / "others.csv")
    with refused("compiled.csv", f"one row of {' '.join(one.key)}".strip(), "found 0"):
        read_programs(rows, parts)
    write_rows([one, one, other], rows, tmp_path / "others.csv")
    with refused("compiled.csv", "found 2"):
        read_programs(rows, parts)
    rows.write_text("config,cluster,mesh\nllama3_8b,h100:1x8,fsdp 8\n")
    with refused("compiled.csv: row 1", "config, cluster, overrides, mesh"):
        read_programs(rows, parts)
    parts.write_text("program,trace,part,kind,times,bytes,flops,detail\n1,t1,kernels,copy,1,1,,\n")
    with refused("parts.csv", "config, cluster, overrides"):
        read_programs(rows, parts)


@pytest.mark.long
def test_parts_take_what_the_report_of_their_program_states():
    analysis, report = inspected(wide(parallel={"fsdp": 8}), "h100:1x8")
    parts = rows_of(analysis, {one.transfer.start.name: shares(one, "host") for one in analysis.movements})
    times = times_of(parts, analysis.timer)
    assert times.step.compute == pytest.approx(report.compute_seconds, rel=1e-6)
    assert times.step.seconds == pytest.approx(analysis.schedule.step.seconds, rel=1e-6)
    assert times.step.seconds_by_kind == pytest.approx(analysis.schedule.step.seconds_by_kind, rel=1e-6)
    assert {"gathers", "scatters"} <= times.needed.keys()
    assert sum(times.exposed.values()) == pytest.approx(report.exposed_seconds, rel=0.01)


def test_a_program_with_work_that_is_not_known_gives_no_row(monkeypatch: pytest.MonkeyPatch):
    analysis = Mock()
    analysis().module.unknown.notes.return_value = ("mystery counts as memory traffic",)
    for name, stand_in in {"compile_step": Mock(), "make_report": Mock(), "Analysis": analysis}.items():
        monkeypatch.setattr(compiling, name, stand_in)
    with refused("mystery"):
        compiled(KNOWN[0])


@pytest.mark.parametrize("row", COPIES, ids=lambda one: one.config)
def test_copies_take_what_compiled_programs_need_and_wait_for(row: Program):
    """Two of them by maps, one by a share. XLA hides or exposes the copies of an array in all layers of a stack, so the
    share of a program is 11% or 20% of its copies: one share for both is 0.9% of compute away at most. With context
    ranks the backward waits for nothing that comes from the host (docs/overlap.md), which the planner does not know."""
    config, cluster = prepared(row)
    layout, search = laid_out(config, cluster)
    copied = copied_bytes(search.timer.steps().layers(layout).case, layout.remat, layout.offload_fraction)
    times = config.model.layers * layout.microbatches(config.data.batch_size)
    assert 2 * copied * times / cluster.host_bandwidth == pytest.approx(row.needed["host"], rel=0.01)
    found = search.timer.step(layout)
    if "context" in row.mesh:
        assert row.exposed["host"] < 0.001 * row.compute and found.breakdown["offload"] < 0.013 * row.compute
    else:
        assert abs(found.breakdown["offload"] - row.exposed["host"]) < 0.009 * row.compute


HOST = parse_cluster("h100:1x8")
MODEL = replace(PRESETS["llama3-8b"], layers=8, vocab=32000)
CASE = layer_cases(MODEL, 8192, Layout())["all"]
SIZES = activation_bytes(CASE.shape)


def remat(*offloaded: str, layers: int = 8) -> Remat:
    """All is kept, of so many layers these activations on the host."""
    own = tuple((name, "offload" if name in offloaded else "save") for name in SIZES)
    rest = tuple((name, "save") for name in SIZES)
    return ((layers, own), (8 - layers, rest)) if layers < 8 else ((8, own),)


def step(treated: Remat, cluster: Cluster = HOST, share: float = 0.0) -> StepTime:
    layout = Layout(fsdp=8, zero=3, remat=treated, offload_fraction=share)
    return step_time(MODEL, 8192, 8, layout, cluster)


def waited(treated: Remat, cluster: Cluster = HOST, share: float = 0.0) -> float:
    return step(treated, cluster, share).breakdown["offload"]


def test_activations_that_a_map_offloads_are_copied_as_those_of_a_share():
    whole = remat(*SIZES)
    assert waited(remat()) == 0 < waited(whole)
    assert waited(whole) == pytest.approx(waited(remat(), share=1.0))
    assert waited(remat("query")) == pytest.approx(waited(remat(), share=SIZES["query"] / sum(SIZES.values())))
    assert waited(remat("query", layers=4)) == pytest.approx(waited(remat("query")) / 2)

"""What a step waits for, as compiled programs have it: the shipped rows, and the shares that are read from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from benchmarks.planner.compiled import by_kind, laid_out, prepared, shares_table, table, write_rows
from jaxpar.compiler.report.record import Collective
from jaxpar.config.presets import PRESETS
from jaxpar.cost.hardware_model import hardware_of
from jaxpar.cost.messages import network_of
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.planner.layout import Layout
from jaxpar.planner.report.words import axes
from jaxpar.planner.step_time.exposed import (
    LayoutClass,
    Program,
    classes_of,
    exposed,
    generation_of,
    read_programs,
)
from jaxpar.planner.step_time.model import step_time
from tests.planner.step_time.test_shares import program
from tests.sentences import refused

HOST = parse_cluster("h100:1x8")
MODEL = replace(PRESETS["llama3-8b"], vocab=32000)


def test_every_class_of_layouts_was_compiled():
    programs = read_programs()
    assert {one.classes[0] for one in programs} == set(get_args(LayoutClass.__value__))
    assert {one.generation for one in programs if one.classes == ("fsdp",)} == {"ampere", "fast", "slow"}
    for one in programs:
        assert one.compute > 0
        assert all(0 <= one.exposed[name] <= needed for name, needed in one.needed.items()), one.command


@pytest.mark.parametrize("one", read_programs(), ids=lambda one: one.command.partition("configs/")[2])
def test_the_command_of_a_row_has_its_layout(one: Program):
    config, cluster = prepared(one)
    layout, _ = laid_out(config, cluster)
    assert (axes(layout), classes_of(layout), generation_of(cluster)) == (one.mesh, one.classes, one.generation)


@pytest.mark.parametrize(
    ("layout", "kind"),
    [
        (Layout(fsdp=8, zero=3), "fsdp"),
        (Layout(replica=2, fsdp=8, zero=3), "replicas"),
        (Layout(replica=2, fsdp=8, tensor=2, zero=3), "tensor"),
        (Layout(fsdp=8, tensor=2, context=2, zero=3), "context"),
        (Layout(expert=8, context=2, zero=3), "experts"),
        (Layout(fsdp=8, tensor=2, zero=3, offload_fraction=0.5), "copies"),
        (Layout(fsdp=8, zero=3, remat=((8, (("query", "offload"),)),)), "copies"),
        (Layout(pipe=2, fsdp=8, tensor=2, zero=3, schedule="1f1b"), "ticks"),
        (Layout(pipe=2, fsdp=8, zero=3, schedule="breadth-first", virtual_stages=2), "held"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_layouts_have_the_class_of_what_their_weights_travel_beside(layout: Layout, kind: str):
    assert classes_of(layout)[0] == kind


@pytest.mark.parametrize(
    ("cluster", "generation"),
    [("a100-80:4x8", "ampere"), ("h100:4x8", "fast"), ("h800:4x8", "slow"), ("h800:1x8", "fast")],
)
def test_generations_of_gpus(cluster: str, generation: str):
    assert generation_of(parse_cluster(cluster)) == generation


def test_a_step_waits_for_the_share_and_the_rest_takes_from_compute():
    """On fsdp 8, whose messages are all shorter than the compute beside them."""
    ring, slow = network_of(HOST, hardware_of(HOST.gpu)).ring(8, 1), hardware_of(HOST.gpu).overlap_slowdown
    layer, table = 3 * MODEL.embed * 14336 + 2 * MODEL.embed * (4096 + 1024), 32000 * MODEL.embed
    count = lambda number: MODEL.layers * number(layer) + 2 * number(table)
    gathers, scatters = 4 * 2 * count(lambda own: ring.gather(2.0 * own)), 4 * count(lambda own: ring.gather(4.0 * own))
    layout = Layout(fsdp=8, zero=3)
    found = step_time(MODEL, 8192, 32, layout, HOST).breakdown["data"]
    least = exposed(layout, HOST)
    waited = least.gather * gathers + least.scatter * scatters
    assert found == pytest.approx(waited + slow * (gathers + scatters - waited), rel=0.01)


def test_copies_to_the_host_cost_the_share_that_programs_wait_for():
    kept = Layout(fsdp=8, zero=3, remat="gemm_last")
    copied = replace(kept, offload_fraction=0.1)
    cost = step_time(MODEL, 8192, 64, copied, HOST).breakdown["offload"]
    assert step_time(MODEL, 8192, 64, kept, HOST).breakdown["offload"] == 0 < cost
    assert step_time(MODEL, 8192, 64, replace(copied, offload_fraction=0.2), HOST).breakdown["offload"] == (
        pytest.approx(2 * cost)
    )


def test_rows_are_written_as_they_are_read(tmp_path: Path):
    file = tmp_path / "compiled.csv"
    write_rows([program(0.25)], file)
    (found,) = read_programs(file)
    assert (found.needed["gathers"], found.exposed["gathers"], found.classes) == (1.0, 0.25, ("fsdp",))
    file.write_text(file.read_text().replace("0.25", "a quarter"))
    with refused("compiled.csv", "row 1", "number", "a quarter"):
        read_programs(file)


def test_messages_count_by_kind():
    sent = lambda axis, name: Collective(axis, name, "all-gather", "bf16", False, 1, 1e6, 2.0, 1.0, 1.0, 0.0)
    rows = [
        sent("fsdp", "gather_weight"), sent("fsdp+context", "scatter_gradient"), sent("replica", "reduce_sum"),
        sent("host", "to_host"), sent("context", "gather_context"), sent("tensor", "gather_sequence"),
        sent("expert", "exchange_tokens"), sent("pipe", "shift_stage"),
        # Of these a step waits for all: they are no part of a share.
        sent("fsdp", "gather_rows"), sent("fsdp", "scatter_rows"), sent("fsdp+expert", "join_ranks"),
    ]  # fmt: skip
    needed, waited = by_kind(rows)
    kinds = ("gathers", "scatters", "sums", "host", "context", "tensor", "experts", "pipe")
    assert needed == dict.fromkeys(kinds, 2.0) and waited == dict.fromkeys(kinds, 1.0)


def test_the_table_has_what_is_waited_for_beside_what_is_expected():
    first, *_ = read_programs()
    (_, _, row) = table([first])
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:4] == ["1", f"`{first.config}`, {first.cluster}", first.mesh, "fsdp, fast"]
    assert cells[5] == f"{first.exposed['gathers']:.3g} of {first.needed['gathers']:.3g} s" and cells[7] == "-"
    assert len(cells) == 12 and all(cell.endswith(" s") for cell in cells[-2:])


def test_the_shares_are_those_that_the_planner_takes():
    rows = [program(0.1), program(0.3), program(0.2, "context")]
    for one in rows:
        one.needed["scatters"], one.exposed["scatters"] = 2.0, 1.0  # pyright: ignore[reportIndexIssue]
    assert shares_table(rows)[2:] == ["| context | fast | 1 | 20.0% | 50.0% |", "| fsdp | fast | 2 | 20.0% | 50.0% |"]

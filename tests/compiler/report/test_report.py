"""The report of one small step, and how it is shown."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from jaxpar.compiler.program.memory.buffers import occupants
from jaxpar.compiler.report import Analysis, Report, make_report
from jaxpar.compiler.report.build import with_utilisation
from jaxpar.compiler.report.layer_schedule import LEFT, layer_schedules, layers_picture
from jaxpar.compiler.report.memory_classes import CLASSES
from jaxpar.compiler.report.memory_picture import memory_timeline
from jaxpar.compiler.report.page import html_page
from jaxpar.compiler.report.tables import print_report
from jaxpar.config import load_config
from jaxpar.config.strict_json import json_text
from jaxpar.cost.hardware_model import HOPPER
from jaxpar.hardware.catalogue import gpu_named
from jaxpar.hardware.memory import pool_bytes
from jaxpar.hardware.xla_flags import OVERLAP_LIMIT
from jaxpar.model.flops import flops_per_step
from tests.browser import browser
from tests.compiler.inspected import CACHE, hsdp, report_of
from tests.compiler.program.programs import module_text

LAYERS, MICROBATCHES, FSDP = 4, 2, 4
SVG = "{http://www.w3.org/2000/svg}"
WEIGHTS_OF_A_LAYER = 4 * 128 * 128 + 3 * 128 * 256
TABLE = 512 * 128


def shown_text(report: Report) -> str:
    screen = io.StringIO()
    print_report(report, Console(file=screen, width=120))
    return screen.getvalue()


def test_classes_add_up_to_the_compilers_peak():
    _, report = hsdp()
    assert set(report.classes) == set(CLASSES)
    on_device = sum(count for name, count in report.classes.items() if name != "host")
    assert on_device == pytest.approx(report.peak_bytes, rel=0.02)


def test_weights_are_gathered_twice_per_microbatch_within_a_node_in_bfloat16():
    _, report = hsdp()
    (row,) = (row for row in report.collectives if row.collective == "gather_weight")
    passes = 2 * MICROBATCHES * LAYERS * WEIGHTS_OF_A_LAYER + 2 * MICROBATCHES * TABLE
    assert (row.axis, row.kind, row.dtype, row.crosses_nodes) == ("fsdp", "all-gather", "bf16", False)
    assert row.bytes == passes * 2 * (FSDP - 1) / FSDP and row.seconds > row.bytes / (450e9 * HOPPER.node_share)
    assert 0 <= row.exposed_s <= row.seconds


def test_gradients_cross_nodes_once_over_replicas():
    _, report = hsdp()
    rows = [row for row in report.collectives if row.collective == "reduce_sum" and row.axis == "replica"]
    assert sum(row.bytes for row in rows) == (LAYERS * WEIGHTS_OF_A_LAYER + 2 * TABLE) / FSDP * 4  # 2 x (2 - 1) / 2
    assert all(row.crosses_nodes for row in rows)
    assert sum(row.seconds for row in rows) > sum(row.bytes for row in rows) / (50e9 * HOPPER.network_share)


def test_exposed_time_is_a_share_of_the_time_of_a_step():
    analysis, report = hsdp()
    assert report.exposed_seconds == pytest.approx(sum(row.exposed_s for row in report.collectives))
    lost = report.exposed_seconds + report.slowed_seconds
    assert report.exposed_fraction == pytest.approx(lost / report.step_seconds)
    hidden = sum(row.seconds - row.exposed_s for row in report.collectives)
    assert report.slowed_seconds == pytest.approx(HOPPER.overlap_slowdown * hidden) and hidden > 0
    assert report.compute_seconds == pytest.approx(sum(report.seconds_by_kind.values()))
    assert analysis.schedule.step.seconds == pytest.approx(report.step_seconds)


def test_the_largest_buffers_name_the_line_that_made_them():
    _, report = hsdp()
    sizes = [buffer.bytes for buffer in report.largest_buffers]
    assert len(sizes) == 10 and sizes == sorted(sizes, reverse=True)
    computed = [buffer for buffer in report.largest_buffers if "/" not in buffer.name]
    assert computed
    assert all(re.fullmatch(r"(jaxpar|pallas_kernels)/\S+\.py:\d+", buffer.source) for buffer in computed)


def test_json_holds_the_keys_that_are_promised():
    _, report = hsdp()
    plain = json.loads(json_text(report.to_dict()))
    promised = "fits peak_bytes host_bytes classes collectives flops recompute_flops exposed_fraction compile_seconds"
    assert set(promised.split()) <= set(plain)
    of_each = "axis collective kind count bytes dtype crosses_nodes exposed_s"
    assert set(of_each.split()) <= set(plain["collectives"][0])


def test_one_layer_takes_as_long_as_the_loop_and_waits_as_long_as_its_transfers():
    analysis, _ = hsdp()
    schedules = layer_schedules(analysis)
    assert [schedule.title for schedule in schedules] == ["Forward", "Backward"]
    assert all(schedule.executions == (LAYERS - 1) * MICROBATCHES for schedule in schedules)
    names = {box.span.name for schedule in schedules for box in schedule.boxes}
    inside = [one for one in analysis.schedule.overlaps if one.movement.transfer.start.name in names]
    assert sum(schedule.waited for schedule in schedules) == pytest.approx(sum(one.time.exposed for one in inside))
    for schedule in schedules:
        computed = sum(box.seconds for box in schedule.boxes if box.span.kind == "compute")
        assert schedule.seconds == pytest.approx(computed + schedule.waited)


def test_the_picture_has_a_box_for_all_time_that_is_computed_sent_or_waited_for():
    """Boxes of a kind are as wide, together, as its time on the axis; those of kernels of one kind are joined."""
    layers = layer_schedules(hsdp()[0])
    root = ElementTree.fromstring(layers_picture([*layers, *layers], "a & <b>"))
    drawn = [box for box in root.iter(f"{SVG}rect") if box.find(f"{SVG}title") is not None]
    ends = [float(box.attrib["x"]) + float(box.attrib["width"]) for box in drawn]
    pixels = (max(ends) - LEFT) / max(layer.seconds for layer in layers)
    boxes = [box for layer in layers for box in layer.boxes]
    width = sum(float(box.attrib["width"]) for box in drawn)
    assert width == pytest.approx(2 * pixels * sum(box.seconds for box in boxes), rel=0.05)
    assert len(drawn) < 2 * len(boxes)
    words = "".join(text.text or "" for text in root.iter(f"{SVG}text"))
    assert "a & <b>" in words


def test_the_timeline_has_its_maximum_at_the_peak():
    analysis, report = hsdp()
    timeline = memory_timeline(analysis, columns=50)
    totals = timeline.totals
    assert timeline.places[totals.index(max(totals))] == timeline.peak
    assert max(totals) == pytest.approx(report.peak_bytes, rel=0.02)
    assert [name for name, _, _ in timeline.loops] == ["forward layers", "backward layers"]


def test_the_page_needs_nothing_from_elsewhere_and_no_name_can_break_it():
    analysis, report = hsdp()
    page = html_page(analysis, replace(report, config="</script><b>"))
    assert "</script><b>" not in page and page.replace("http://www.w3.org/2000/svg", "").count("://") == 0
    assert (page.count('<svg class="memory"'), page.count('<svg class="layers"'), page.count("<style>")) == (1, 1, 1)


def test_an_operation_that_is_not_known_is_named_on_the_screen_in_json_and_on_the_page():
    analysis, before = hsdp()
    program = analysis.compilation.program
    opcode = next(name for name in ("negate", "exponential", "sqrt") if f" {name}(" in program)
    renamed = replace(analysis.compilation, program=program.replace(f" {opcode}(", " frobnicate("))
    lenient = Analysis(renamed, analysis.cluster)
    report = make_report(lenient, "small")
    note = "that this release does not know"
    assert [one for one in report.notes if note in one and one.endswith("as memory traffic: frobnicate")]
    for shown in (shown_text(report), json_text(report.to_dict()), html_page(lenient, report)):
        assert shown.count(note) == 1
    assert (report.flops, report.collectives) == (before.flops, before.collectives)
    assert not any(note in one for one in before.notes)


def test_the_screen_answers_first_whether_it_fits():
    _, report = hsdp()
    assert "It fits: " in shown_text(report).splitlines()[1]
    too_much = replace(report, fits=False, margin_bytes=-3 * 2**30, way_out="the nearest that fits: memory.remat: full")
    assert "It does NOT fit: " in shown_text(too_much).splitlines()[1]
    assert "3.0 GiB too much; the nearest that fits: memory.remat: full." in shown_text(too_much)
    assert report.margin_bytes == pool_bytes(report.device_bytes) - report.allocated_bytes


def test_device_memory_that_xlas_total_leaves_out_counts():
    before, report = hsdp()
    value = next(one.value for one in occupants(before.buffers, before.peak[0]) if one.allocation.shared)
    path = "{" + ",".join(map(str, value.path)) + "}" if value.path else ""
    own = (
        "allocation 9999: size 1048576, color 1, page 0, preallocated-temp:\n"
        f" value: <9999 {value.op}{path} @1> (size=1048576,offset=0): f32[262144]{{0:S(1)}}\n"
    )
    compilation = replace(before.compilation, buffer_assignment=before.compilation.buffer_assignment + own)
    found = report_of(Analysis(compilation, before.cluster))
    assert found.allocated_bytes == report.allocated_bytes + 2**20
    assert found.margin_bytes == report.margin_bytes - 2**20 and found.peak_bytes == before.peak[1] + 2**20


def test_the_utilisation_is_of_the_peak_in_16_bits_and_in_fp8_of_its_own():
    _, report = hsdp()
    config, gpu = load_config(CACHE / "hsdp.yaml"), gpu_named("h100")
    plain = with_utilisation(report, config, gpu).utilisation
    flops = flops_per_step(config.model, 16 * 64, {None: 16 * 64 * 65 // 2}, 512)
    assert plain == {"bfloat16": pytest.approx(flops / (report.step_seconds * 8 * 989.4e12))}
    both = with_utilisation(replace(report, float8_flops=1.0), config, gpu).utilisation
    assert both == plain | {"float8": pytest.approx(plain["bfloat16"] * 989.4 / 1978.9)}


def test_what_is_waited_for_longest_is_listed_with_the_line_that_asked_for_it():
    _, report = hsdp()
    exposed = [row.exposed_s * row.count for row in report.exposures]
    assert exposed == sorted(exposed, reverse=True) and sum(exposed) <= report.exposed_seconds * (1 + 1e-9)
    for row in report.exposures:
        assert row.source.startswith("jaxpar/") and ":" in row.source
        assert row.enclosed_s == 0 or not row.synchronous


@pytest.mark.long
def test_the_page_states_what_is_under_the_pointer_and_asks_for_nothing(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(html_page(*hsdp()), encoding="utf-8")
    with browser() as shown:
        for dark in (False, True):
            shown.dark(dark)
            shown.open(page)
            assert shown.text("#readout") == ""
            shown.hover("svg.memory", part=0.5)
            printed = shown.text("#readout")
            assert re.search(r": [1-9]\d*\.\d\d MiB = optimizer [1-9]\.\d\d MiB \+ weights ", printed), printed
            assert shown.read("document.getElementById('cursor').style.visibility") == "visible"
            shown.screenshot(tmp_path / f"{'dark' if dark else 'light'}.png", whole=True)
        shown.resize(390, 844, phone=True)
        assert shown.read("document.documentElement.scrollWidth") == 390 and shown.console == []
        assert shown.requests == []


INSIDE, ACROSS = "{{0,1,2,3},{4,5,6,7}}", "{{0,4},{1,5},{2,6},{3,7}}"
PROGRAM = module_text(
    f"""%start = f32[1048576] parameter(0)
    %a = ((f32[1048576]), f32[1048576]) all-reduce-start(%start), replica_groups={INSIDE}
    %b = ((f32[1048576]), f32[1048576]) all-reduce-start(%start), replica_groups={ACROSS}
    %ad = f32[1048576] all-reduce-done(%a)
    %bd = f32[1048576] all-reduce-done(%b)""",
    partitions=8,
)


@pytest.mark.parametrize(
    ("limit", "planned", "apart"), [(None, 1, False), (1, 1, False), (2, 1, True), (None, 2, True), (1, 2, False)]
)
def test_links_are_apart_where_a_program_may_have_several_collectives_in_flight(
    limit: int | None, planned: int, apart: bool
):
    """By its flags, or by its plan."""
    compilation, cluster = hsdp()[0].compilation, hsdp()[0].cluster
    own = () if limit is None else (f"--{OVERLAP_LIMIT}={limit}",)
    plan, flags = replace(compilation.plan, collectives_at_once=planned), (*compilation.xla_flags, *own)
    changed = replace(compilation, program=PROGRAM, plan=plan, xla_flags=flags)
    analysis = Analysis(changed, cluster)
    inside, across = (analysis.timer.transfer(movement) for movement in analysis.movements)
    wanted = max(inside, across) if apart else inside + across
    assert inside > 0 < across and analysis.schedule.exposed_seconds == pytest.approx(wanted)
    assert not analysis.module.unknown.notes() and analysis.schedule.step.seconds == pytest.approx(wanted)

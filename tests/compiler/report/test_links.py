"""Links in a report: those inside a node and those between nodes are apart where XLA may use both at a time."""

from dataclasses import replace

import pytest

from jaxpar.compiler.report import Analysis
from jaxpar.hardware.xla_flags import OVERLAP_LIMIT
from tests.compiler.inspected import hsdp
from tests.compiler.program.programs import module_text

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
    analysis = Analysis(changed, cluster, strict=True)
    inside, across = (analysis.timer.transfer(movement) for movement in analysis.movements)
    wanted = max(inside, across) if apart else inside + across
    assert inside > 0 < across and analysis.schedule.exposed_seconds == pytest.approx(wanted)
    assert analysis.schedule.step.seconds == pytest.approx(wanted)

"""What a pipeline's plan says, and the sizes that a schedule cannot have: one sentence, before anything is compiled."""

from typing import Any

import jax
import pytest

from jaxpar.config.plan import Plan
from jaxpar.config.reading.overrides import with_overrides
from jaxpar.layout.make_plan import make_plan, resolve_config
from tests.sentences import refusals, refused
from tests.small_run import layout_of, small


def plan_of(layers: int = 8, **parallel: Any) -> Plan:
    config = small(model={"layers": layers}, parallel=parallel, data={"batch_size": 24})
    return make_plan(resolve_config(config, layout_of(config.parallel)), jax.devices()[0])


@refusals("""
    parallel.pipe=2 | parallel.schedule=zbh1 => parallel.schedule: | 'zbh1' | zb-h1? | one-stage, gpipe, 1f1b
    parallel.pipe=4 | parallel.schedule=breadth-first | parallel.microbatches=2 => parallel.schedule: |
        breadth-first on 4 ranks | at least 4 microbatches | got 2
    parallel.pipe=4 | parallel.schedule=interleaved | parallel.microbatches=6 => parallel.schedule: | interleaved |
        multiple of its 4 ranks | got 6; 4 or 8 would do
    parallel.pipe=2 | parallel.schedule=1f1b | parallel.virtual_stages=2 => parallel.schedule: | 1f1b |
        exactly 1 virtual stages | got 2
    parallel.pipe=8 | parallel.schedule=interleaved | parallel.microbatches=8 => parallel.pipe x virtual_stages: |
        16 chunks | 8 layers | model.layers
    parallel.pipe=2 | parallel.stage_layers=[2, 3, 3] => parallel.stage_layers: | [2, 3, 3] | 3 entries | 2 chunks |
        parallel.pipe 2 x 1 virtual
    parallel.pipe=2 | parallel.schedule=zb-v | parallel.microbatches=4 | parallel.stage_layers=[4, 4] =>
        parallel.stage_layers: | [4, 4] | 2 entries | 4 chunks | parallel.pipe 2 x 2 virtual
""")
def test_sizes_that_a_schedule_cannot_have_are_one_sentence(overrides: list[str], parts: tuple[str, ...]):
    config = with_overrides(small(model={"layers": 8}, data={"batch_size": 24}), overrides)
    with refused(*parts):
        make_plan(resolve_config(config, layout_of(config.parallel)), jax.devices()[0])


def test_auto_is_1f1b_and_the_fewest_virtual_stages():
    plan = plan_of(pipe=2, microbatches=4)
    assert (plan.schedule, plan.virtual_stages, plan.stage_layers) == ("1f1b", 1, (4, 4))
    assert plan_of(pipe=2, microbatches=4, schedule="ZB_V").schedule == "zb-v"
    assert plan_of(pipe=2, microbatches=4, schedule="interleaved").virtual_stages == 2
    alone = plan_of(microbatches=3)
    assert (alone.schedule, alone.virtual_stages, alone.stage_layers) == ("one-stage", 1, (8,))


@pytest.mark.parametrize(
    ("layers", "chunks"), [(8, (2, 2, 2, 2)), (9, (2, 3, 2, 2)), (10, (2, 3, 3, 2)), (7, (2, 2, 2, 1))]
)
def test_layers_that_do_not_divide_go_to_the_middle(layers: int, chunks: tuple[int, ...]):
    assert plan_of(layers, pipe=4, microbatches=4).stage_layers == chunks


def test_stage_layers_are_as_written():
    assert plan_of(pipe=4, microbatches=4, stage_layers=(1, 3, 3, 1)).stage_layers == (1, 3, 3, 1)

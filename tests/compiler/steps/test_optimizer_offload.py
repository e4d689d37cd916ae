"""State in pinned host memory, read from the GPU program: what moves, and what the device no longer holds."""

import re
from functools import cache

import pytest

from jaxpar.compiler.report import Analysis, Report
from jaxpar.config import Config
from jaxpar.layout.memory.estimate import estimate_memory, estimated_bytes
from jaxpar.layout.memory.state_bytes import host_gradient_bytes, layer_bytes
from jaxpar.layout.memory.state_storage import streamed_bytes
from jaxpar.layout.step_layout import StepLayout
from jaxpar.memory.streaming import PIECE_BYTES
from tests.compiler.inspected import inspected, wide

pytestmark = pytest.mark.long

LAYERS, EMBED, MLP, VOCAB = 32, 2048, 8192, 16384
"""A layer of an MLP's matrix, with its moments, is larger than a piece should be."""
LAYER = 3 * 4 * EMBED * MLP


def config_of(offload: str, weights: str = "none") -> Config:
    return wide(
        model={"layers": LAYERS, "embed": EMBED, "mlp": MLP, "vocab": VOCAB, "heads": 16, "kv_heads": 4},
        data={"sequence_length": 512, "batch_size": 1},
        memory={"optimizer_offload": offload, "weights_offload": weights},
    )


NO_ROOM, ROOM = 1, int(28.6 * 2**30)
"""Bytes of a device that a plan counts with: none of the state fits beside the step, or a part of it."""


@cache
def compiled(offload: str, weights: str = "none", usable: int = NO_ROOM) -> tuple[Analysis, Report]:
    return inspected(config_of(offload, weights), "h100:1x1", usable)


def layout_of(offload: str, weights: str = "none", usable: int = NO_ROOM) -> StepLayout:
    return StepLayout(config_of(offload, weights), compiled(offload, weights, usable)[0].compilation.plan)


def state_of(offload: str) -> tuple[int, int]:
    """Bytes to the device and back, as counted from shapes."""
    return streamed_bytes(layout_of(offload))


def test_the_state_goes_there_and_back_once_and_the_weights_once_more():
    moved = {row.collective: row.bytes for row in compiled("host")[1].collectives if row.axis == "host"}
    there, back = state_of("host")
    assert LAYER > PIECE_BYTES
    assert moved == {"from_host": pytest.approx(there, abs=64), "to_host": pytest.approx(back, abs=64)}


def test_it_is_what_the_device_no_longer_holds_but_for_the_pieces_on_their_way():
    resident, streamed = (compiled(offload)[0].compilation.memory for offload in ("none", "host"))
    state = state_of("host")[1]
    assert resident.argument - streamed.argument == pytest.approx(state, abs=64)
    fallen = resident.total_allocation - streamed.total_allocation
    assert state - 3 * LAYER < fallen <= state


def test_the_part_that_fits_stays_on_the_device_and_moves_no_byte():
    """A third more of AdamW's state comes than goes, since master weights come twice."""
    layout, (every, _), (some, report) = layout_of("host", usable=ROOM), compiled("host"), compiled("host", usable=ROOM)
    there, back = streamed_bytes(layout)
    stays = state_of("host")[1] - back
    assert 0.2 * state_of("host")[1] < stays < 0.8 * state_of("host")[1]
    moved = {row.collective: row.bytes for row in report.collectives if row.axis == "host"}
    assert moved == {"from_host": pytest.approx(there, abs=64), "to_host": pytest.approx(back, abs=64)}
    assert state_of("host")[0] - there == pytest.approx(4 / 3 * stays, abs=64)
    grown = some.compilation.memory.argument - every.compilation.memory.argument
    assert grown == pytest.approx(stays, abs=64)
    assert estimated_bytes(layout.config, layout.plan) == pytest.approx(report.allocated_bytes, rel=0.05)
    assert some.compilation.memory.host_argument == some.compilation.memory.host_alias == pytest.approx(back, abs=64)


def test_the_host_holds_it_once_and_it_is_changed_in_place():
    memory = compiled("host")[0].compilation.memory
    assert memory.host_temp == 0
    assert memory.host_alias == memory.host_argument == memory.host_output == pytest.approx(state_of("host")[1], abs=64)


def test_copies_are_asynchronous_and_a_piece_goes_back_while_another_comes():
    analysis, _ = compiled("host")
    copies = [o for o in analysis.schedule.overlaps if o.movement.transfer.channel == "host"]
    assert copies and all(not copy.movement.transfer.synchronous for copy in copies)
    both = 0
    for computation in analysis.compilation.program.split("\n\n"):
        events = re.findall(r"%(dynamic-(?:update-)?slice)-(start|done)(?:\.[\d.]+)? = ", computation)
        if ("dynamic-update-slice", "start") not in events:
            continue
        going = False
        for copy, event in events:
            if copy == "dynamic-update-slice":
                going = event == "start"
            elif event == "start" and going:
                both += 1
    assert both >= 2 * 3, "of the three arrays of each MLP matrix two come while another one goes back"


def test_weights_and_gradients_of_layers_that_rest_on_the_host_leave_the_device():
    """All but those of the layers that pass. The host has the gradients besides; no buffer is there twice."""
    layout, (analysis, report) = layout_of("host", "host"), compiled("host", "host")
    resident, away = compiled("host")[0].compilation.memory, analysis.compilation.memory
    layer = layer_bytes(layout)
    fallen = resident.total_allocation - away.total_allocation
    assert fallen == pytest.approx(LAYERS * (layer.weights + layer.gradients), rel=0.05)
    assert away.host_argument == away.host_alias == resident.host_argument
    assert away.host_temp == pytest.approx(host_gradient_bytes(layout), abs=64)
    assert estimated_bytes(layout.config, layout.plan) == pytest.approx(report.allocated_bytes, rel=0.1)
    assert estimate_memory(layout.config, layout.plan).host == pytest.approx(report.host_bytes, abs=1024)


def test_layers_come_for_forward_and_backward_and_gradients_go_without_waiting():
    """XLA may keep a layer that it has just sent."""
    analysis, report = compiled("host", "host")
    moved = {row.collective: row.bytes for row in report.collectives if row.axis == "host"}
    there, back = streamed_bytes(layout_of("host", "host"))
    layer = layer_bytes(layout_of("host", "host"))
    assert there - layer.gradients - 2**20 <= moved["from_host"] <= there
    assert moved["to_host"] == pytest.approx(back, abs=64)
    copies = [o for o in analysis.schedule.overlaps if o.movement.transfer.channel == "host"]
    assert copies and all(not copy.movement.transfer.synchronous for copy in copies)


def test_state_in_files_leaves_gradients_as_results_which_the_estimate_knows():
    layout, (_, report) = layout_of("file"), compiled("file")
    assert estimated_bytes(layout.config, layout.plan) == pytest.approx(report.allocated_bytes, rel=0.05)
    assert estimate_memory(layout.config, layout.plan).gradients > 0.9 * report.classes["gradients"]

"""State in pinned host memory, read from the GPU program: what moves, and what the device no longer holds."""

from __future__ import annotations

import re
from functools import cache

import pytest

from jaxpar.compiler.report import Analysis, Report
from jaxpar.config import Config
from jaxpar.memory.streaming import PIECE_BYTES
from jaxpar.training.memory_estimate import estimate_memory, estimated_bytes
from jaxpar.training.resting_state import streamed_bytes
from jaxpar.training.step import TrainStep
from tests.compiler.inspected import inspected, wide
from tests.traced import mesh_of

pytestmark = pytest.mark.long

LAYERS, EMBED, MLP, VOCAB = 4, 2048, 8192, 16384
"""A layer of an MLP's matrix, with its moments, is larger than a piece should be."""
LAYER = 3 * 4 * EMBED * MLP


def config_of(offload: str) -> Config:
    return wide(
        model={"layers": LAYERS, "embed": EMBED, "mlp": MLP, "vocab": VOCAB, "heads": 16, "kv_heads": 4},
        data={"sequence_length": 512, "batch_size": 1},
        memory={"optimizer_offload": offload},
    )


@cache
def compiled(offload: str) -> tuple[Analysis, Report]:
    return inspected(config_of(offload), "h100:1x1")


def state_of(offload: str) -> tuple[int, int]:
    """Bytes to the device and back, as counted from shapes."""
    step = TrainStep(config_of(offload), compiled(offload)[0].compilation.plan, mesh_of())
    return streamed_bytes(step)


def test_the_state_goes_there_and_back_once_and_the_weights_once_more():
    moved = {row.verb: row.bytes for row in compiled("host")[1].collectives if row.axis == "host"}
    there, back = state_of("host")
    assert LAYER > PIECE_BYTES
    assert moved == {"from_host": pytest.approx(there, abs=64), "to_host": pytest.approx(back, abs=64)}


def test_it_is_what_the_device_no_longer_holds_but_for_the_pieces_on_their_way():
    resident, streamed = (compiled(offload)[0].compilation.memory for offload in ("none", "host"))
    state = state_of("host")[1]
    assert resident.argument - streamed.argument == pytest.approx(state, abs=64)
    fallen = resident.total_allocation - streamed.total_allocation
    assert state - 3 * LAYER < fallen <= state


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


def test_state_in_files_leaves_gradients_as_results_which_the_estimate_knows():
    analysis, report = compiled("file")
    step = TrainStep(config_of("file"), analysis.compilation.plan, mesh_of())
    assert estimated_bytes(step) == pytest.approx(report.allocated_bytes, rel=0.05)
    assert estimate_memory(step).gradients > 0.9 * report.classes["gradients"]

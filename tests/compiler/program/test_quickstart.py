"""The whole step of the quickstart on eight H100s, against counts made by hand."""

from __future__ import annotations

from math import prod

from jaxpar.compiler.program.costs.ops import costs, flops_by_kind, recomputed_flops
from jaxpar.compiler.program.loops import executions
from jaxpar.config import load_config
from jaxpar.model.flops import flops_per_step
from tests.compiler.program.generate import ROOT
from tests.compiler.program.programs import compiled

MODEL = load_config(ROOT / "configs" / "quickstart.yaml").model
LAYERS, EMBED, HEADS, WIDTH, HIDDEN = 4, 128, 8, 16, 384
ROWS, LENGTH, DEVICES, TENSOR = 32, 256, 8, 2
PADDED_VOCABULARY = 384  # of 257 bytes and marks, up to a multiple of 128
TOKENS = ROWS * LENGTH


def muon() -> float:
    """Five Newton-Schulz iterations on each matrix, dealt out to four ranks: A = XX', B = AA, BX with X [m, n]."""
    square, wide = (EMBED, EMBED), (EMBED, HIDDEN)
    each = [2 * m * m * n + 2 * m**3 + 2 * m * m * n for m, n in 4 * [square] + 3 * [wide]]
    return 5 * sum(each) * LAYERS / 4


def test_flops_are_the_models_count_and_what_is_recomputed():
    module = compiled("quickstart")
    each = costs(module, executions(module))
    found = flops_by_kind(each)
    per_layer = 4 * EMBED * HEADS * WIDTH + 3 * EMBED * HIDDEN
    weights = LAYERS * per_layer + EMBED * PADDED_VOCABULARY
    # A product of scores or of values over all pairs of a row: the block is computed whole, the mask takes its half.
    product = 2 * ROWS * LENGTH**2 * HEADS * WIDTH * LAYERS
    assert found["matmul"] == 6 * weights * TOKENS / DEVICES + muon()
    # Two products forward and four backward, and the scores once more: attention saves none of them.
    assert found["attention"] == (2 + 4 + 1) * product / DEVICES
    assert recomputed_flops(each) == product / DEVICES
    model = flops_per_step(MODEL, TOKENS, {None: ROWS * LENGTH**2}, PADDED_VOCABULARY)
    assert sum(found.values()) == model / DEVICES + muon() + product / DEVICES


def test_float32_stays_float32_and_no_projection_runs_twice():
    module = compiled("quickstart")
    found = costs(module, executions(module))
    assert {cost.arithmetic for cost in found if cost.flops} == {"float32"}
    assert recomputed_flops(cost for cost in found if cost.kind == "matmul") == 0


def test_parameters_are_the_state_and_the_batch():
    parameters = compiled("quickstart").entry_computation.parameters
    names = [op.op_name.split("[")[0].split(".")[0] for op in parameters]
    assert set(names) == {"state", "batch"}
    masters = [op for op in parameters if op.op_name.startswith("state.master")]
    size = LAYERS * (4 * EMBED * HEADS * WIDTH + 3 * EMBED * HIDDEN) + 2 * EMBED * PADDED_VOCABULARY
    norms = (2 * LAYERS + 1) * EMBED
    # Master weights rest over fsdp and tensor, norms on every rank.
    assert sum(prod(op.shape.dims) for op in masters) == size / 4 + norms

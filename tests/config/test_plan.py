"""The plan survives JSON and refuses what it does not know."""

import json
from dataclasses import asdict

import pytest

from jaxpar.config.axes import MESH_AXES, axis_sizes
from jaxpar.config.plan import AxisSizes, Choice, Dtypes, LayerRun, Plan
from jaxpar.config.reading.typed import record_from_plain
from jaxpar.config.schema import ParallelConfig
from tests.sentences import refused

PLAN = Plan(
    axes=AxisSizes(pipe=2, replica=2, fsdp=3, expert=5, context=7, tensor=11),
    zero=2,
    schedule="interleaved",
    virtual_stages=2,
    stage_layers=(2, 3, 3, 1),
    pipe_ends="shared",
    pipe_ticks="uniform",
    microbatches=4,
    microbatch_rows=2,
    remat="gemm_last",
    runs=(LayerRun(3, {"query": "save", "mlp_hidden": "recompute"}),),
    dtypes=Dtypes("bfloat16", "bfloat16", "float32", "float32", "float32"),
    attention={"all": Choice("xla", "the first that supports the request", {"cudnn": "no GPU"})},
    context_strategy=Choice("allgather", "asked for"),
)


def read(written: object) -> Plan:
    return record_from_plain(Plan, written, "plan")


def plain() -> dict:
    return json.loads(json.dumps(asdict(PLAN)))


def test_a_plan_survives_json_and_can_be_a_key():
    assert read(plain()) == PLAN
    assert {PLAN: 1}[read(plain())] == 1


def test_axis_sizes_read_like_a_mapping_in_mesh_order():
    assert dict(PLAN.axes) == {
        "islands": 1, "pipe": 2, "replica": 2, "fsdp": 3, "expert": 5, "context": 7, "tensor": 11,
    }  # fmt: skip
    assert tuple(PLAN.axes.keys()) == MESH_AXES and PLAN.axes["tensor"] == 11
    assert (PLAN.axes.devices, PLAN.axes.data) == (2 * 2 * 3 * 5 * 7 * 11, 2 * 3 * 5)
    assert AxisSizes(**axis_sizes(ParallelConfig(fsdp=4))) == AxisSizes(fsdp=4)
    with pytest.raises(KeyError):
        PLAN.axes["devices"]


@pytest.mark.parametrize(
    ("path", "value", "parts"),
    [
        (("zeroo",), 3, ("plan:", "'zeroo'", " zero?")),
        (("axes", "tenser"), 2, ("plan.axes:", "'tenser'", " tensor?")),
        (("attention", "all", "why"), "x", ("plan.attention.all:", "unknown key", "'why'")),
        (("zero",), 4, ("plan.zero:", "0, 1, 2 or 3", "got 4")),
        (("axes", "fsdp"), 2**20, ("plan.axes:", "at most 2^20", "1614807040 devices")),
        (("microbatches",), 10**400, ("plan.microbatches:", "at most 64 bits", f"got {10**76}...")),
        (("axes",), 8, ("plan.axes:", "a mapping", "got 8")),
        (("stage_layers",), 4, ("plan.stage_layers:", "a list", "got 4")),
        (("stage_layers",), [2, "3"], ("plan.stage_layers[1]:", "a whole number", "got '3'")),
        (("pipe_ends",), "first", ("plan.pipe_ends:", "last or shared", "got 'first'")),
        (("runs", 0, "activations", "query"), "sav", ("activations.query:", "save, recompute", "'sav'", " save?")),
        (("attention", "all", "rejected", "cudnn"), None, ("plan.attention.all.rejected.cudnn:", "text", "got null")),
    ],
)
def test_a_wrong_key_or_value_is_one_sentence(path, value, parts):
    changed = plain()
    at = changed
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value
    with refused(*parts):
        read(changed)


def test_a_missing_key_is_named():
    changed = plain()
    del changed["dtypes"]["storage"]
    with refused("plan.dtypes", "storage", "missing"):
        read(changed)

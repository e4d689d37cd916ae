"""Every schedule trains to the numbers of one device, whatever it is combined with.

The matrix covers every pair of values of its factors, as in `test_parity.py`: each schedule with every other feature.
"""

import itertools
from functools import cache
from typing import Any

import numpy as np
import pytest

from jaxpar.pipeline.errors import ScheduleError
from jaxpar.pipeline.schedules import SCHEDULES, make_schedule
from tests.covering import Row, covering_rows, feasible_pairs
from tests.nonzero_gradients import FAMILIES, gemma
from tests.small_run import SmallRun, small
from tests.training.parity.one_device import assert_equals_one_device

MODELS: dict[str, tuple[bool, dict[str, Any]]] = {
    "llama": (True, {"tied": False, "dropout": 0.0} | FAMILIES["llama"]),
    "gpt2": (False, {"tied": True, "dropout": 0.1} | FAMILIES["gpt2"]),
    "qwen3": (True, {"tied": True, "dropout": 0.0} | FAMILIES["qwen3"]),
    "olmo2": (True, {"tied": False, "dropout": 0.1} | FAMILIES["olmo2"]),
    "gemma": (True, {"tied": True, "dropout": 0.0} | gemma(layers=8)),
    "cohere": (True, {"tied": True, "dropout": 0.1} | FAMILIES["cohere"]),
    "olmo": (True, {"tied": False, "dropout": 0.0} | FAMILIES["olmo"]),
    "gemma3n": (True, {"tied": True, "dropout": 0.1} | FAMILIES["gemma3n"]),
}
"""Whether its data is packed, and the model: with each value of packed, tied and dropout."""

FACTORS: dict[str, tuple[Any, ...]] = {
    "schedule": tuple(name for name in SCHEDULES if name != "one-stage"),
    "pipe": (2, 4),
    "microbatches": (3, 4, 12),
    "remainder": (False, True),
    "more_stages": (False, True),
    "uneven": (False, True),
    "pipe_ends": ("last", "shared"),
    "pipe_ticks": ("uniform", "branching"),
    "replica": (1, 2),
    "fsdp": (1, 2),
    "tensor": (1, 2),
    "context": (1, 2),
    "zero": (0, 2, 3),  # under a pipeline 1 is 2: see tests/mesh/test_placements.py
    "memory": ("none, then gemm_last", "half offloaded", "full"),
    "model": ("llama", "gpt2", "qwen3", "olmo2", "gemma"),
}

MEMORIES: dict[str, dict[str, Any]] = {
    "none, then gemm_last": {"remat": [{"layers": 0, "preset": "none"}]},
    "half offloaded": {"offload_fraction": 0.5},
    "full": {"remat": "full"},
}

LAYERS, BATCH, DEVICES = 8, 24, 8


@cache
def chunks_of(schedule: str, pipe: int, microbatches: int, more_stages: bool) -> int:
    """Chunks of the model, which are 0 where the schedule cannot have these sizes."""
    fewest, most = SCHEDULES[schedule].virtual_stages
    if more_stages and most is not None:
        return 0
    try:
        return make_schedule(
            schedule, ranks=pipe, microbatches=microbatches, virtual_stages=fewest + more_stages
        ).chunks
    except ScheduleError:
        return 0


@cache
def _schedule_fits(pipe: int, microbatches: int, asked: tuple[tuple[str, Any], ...]) -> bool:
    """Whether some schedule has these sizes and what is `asked` of it."""
    row = dict(asked)
    options = itertools.product(*((row[n],) if n in row else FACTORS[n] for n in ("schedule", "more_stages", "uneven")))
    return any(
        0 < chunks_of(schedule, pipe, microbatches, more) <= LAYERS - uneven for schedule, more, uneven in options
    )


def _fits(row: Row) -> bool:
    """Whether some row of all factors has the values of `row`."""
    if row.get("pipe_ends") == "shared" and row.get("pipe_ticks") == "branching":
        return False
    if row.get("zero", 0) > 0:  # so that there is something to shard
        row = {"fsdp": 2} | row
    if row.get("zero", 0) > 0 and row["fsdp"] == 1:
        return False
    given = tuple((name, row[name]) for name in ("schedule", "more_stages", "uneven") if name in row)
    others = int(np.prod([row.get(axis, 1) for axis in ("replica", "fsdp", "tensor", "context")]))
    data = row.get("replica", 1) * row.get("fsdp", 1)
    return any(
        pipe * others <= DEVICES
        and row.get("remainder", microbatches % pipe > 0) == (microbatches % pipe > 0)
        and BATCH % (microbatches * data) == 0
        and _schedule_fits(pipe, microbatches, given)
        for pipe in ((row["pipe"],) if "pipe" in row else FACTORS["pipe"])
        for microbatches in ((row["microbatches"],) if "microbatches" in row else FACTORS["microbatches"])
    )


ROWS = covering_rows(FACTORS, _fits, seed=7)


def config_of(row: Row) -> Any:
    asked = "pipe microbatches schedule pipe_ends pipe_ticks replica fsdp tensor context zero"
    parallel = {name: row[name] for name in asked.split()}
    fewest, _ = SCHEDULES[row["schedule"]].virtual_stages
    chunks = chunks_of(row["schedule"], row["pipe"], row["microbatches"], row["more_stages"])
    parallel["virtual_stages"] = fewest + row["more_stages"]
    if row["uneven"]:
        parallel["stage_layers"] = (*[1] * (chunks - 2), LAYERS + 1 - chunks - (chunks > 2), 1 + (chunks > 2))
    return model_of(row["model"], parallel=parallel, memory=MEMORIES[row["memory"]])


def model_of(name: str, **sections: dict[str, Any]) -> Any:
    packed, model = MODELS[name]
    return small(model=model | {"layers": LAYERS}, data={"packed": packed, "batch_size": BATCH}, **sections)


def test_the_matrix_covers_every_feasible_pair():
    for (a, x), (b, y) in feasible_pairs(FACTORS, _fits):
        assert any(row[a] == x and row[b] == y for row in ROWS), f"{a}={x} with {b}={y}"


def test_microbatches_that_are_no_multiple_of_the_ranks_are_among_them():
    """But for interleaved, which cannot, and DualPipeV, for which a step of so many would be large: see its toy."""
    allowed = {row["schedule"] for row in ROWS if row["microbatches"] % row["pipe"]}
    assert allowed == set(FACTORS["schedule"]) - {"interleaved", "dualpipe-v"}


def _name(row: Row) -> str:
    axes = "".join(f"-{a}{row[a]}" for a in ("replica", "fsdp", "tensor", "context") if row[a] > 1)
    ticks = "-branching" if row["pipe_ticks"] == "branching" else ""
    pipeline = f"{row['schedule']}-pipe{row['pipe']}-m{row['microbatches']}{ticks}"
    return f"{pipeline}{axes}-zero{row['zero']}-{row['model']}-{row['memory']}"


@pytest.mark.matrix(quick=("1f1b-pipe4-m12-context2-zero0-llama-full",), ci=3)
@pytest.mark.parametrize("row", ROWS, ids=_name)
def test_loss_and_gradients_equal_one_device(row: Row):
    assert_equals_one_device(SmallRun(config_of(row)), model_of(row["model"], memory={"remat": "none"}))


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize(
    ("model", "parallel"),
    [
        ("gpt2", {"schedule": "1f1b", "context": 4, "context_strategy": "ring"}),
        ("qwen3", {"schedule": "zb-h1", "context": 4, "context_strategy": "usp", "pipe_ends": "shared"}),
        ("qwen3", {"schedule": "interleaved", "context": 2, "tensor": 2, "context_strategy": "ring"}),
        ("qwen3", {"schedule": "zb-h1", "context": 4, "context_strategy": "ulysses", "pipe_ticks": "branching"}),
        ("cohere", {"schedule": "zb-h1", "context": 2, "context_strategy": "ring", "tensor": 2}),
        ("gemma3n", {"schedule": "zb-h1", "context": 2, "context_strategy": "ring", "tensor": 2}),
        ("gemma3n", {"schedule": "1f1b", "context": 2, "context_strategy": "ulysses", "fsdp": 2, "zero": 2}),
        ("olmo", {"schedule": "zb-v", "context": 2, "context_strategy": "ring", "fsdp": 2, "zero": 2}),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value['schedule']}-{value['context_strategy']}",
)
def test_context_strategies_inside_pipelines_equal_one_device(model: str, parallel: dict[str, Any]):
    run = SmallRun(model_of(model, parallel={"pipe": 2, "microbatches": 4} | parallel))
    assert_equals_one_device(run, model_of(model, memory={"remat": "none"}))

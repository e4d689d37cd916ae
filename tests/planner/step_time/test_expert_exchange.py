"""What the planner expects of the exchange of tokens in a whole step, beside what the compiled program waits for."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxpar.config import load_config
from jaxpar.planner.machine import named_cluster
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import Space
from jaxpar.planner.settings import plan_on
from jaxpar.planner.stage_work import layout_of

CONFIGS = Path(__file__).parents[3] / "configs"
ZERO_3 = (
    "parallel.zero=3", "parallel.microbatches=16", "parallel.experts.own_rows=exchanged",
    "memory.optimizer_offload=none",
)  # fmt: skip
COMPILED: dict[tuple[str, str, tuple[str, ...]], float] = {("qwen3_30b_a3b", "h100:2x8", ZERO_3): 3.04}
"""Seconds of a step in which nothing runs beside the exchange:
`python -m jaxpar.inspect --config configs/qwen3_30b_a3b.yaml --cluster h100:2x8 --set parallel.experts.backend=mosaic
--timeout 3000` and `--set` for each of `ZERO_3`, jax 0.11.2."""


@pytest.mark.parametrize(("file", "on", "options"), COMPILED)
def test_a_step_is_expected_to_wait_for_experts_as_long_as_the_compiled_one_does(
    file: str, on: str, options: tuple[str, ...]
):
    cluster = named_cluster(on)
    config, plan = plan_on(
        load_config(CONFIGS / f"{file}.yaml", ["parallel.experts.backend=mosaic", *options]), cluster
    )
    search = Search(Space(config, cluster))
    time = search.timer.step(layout_of(config, plan, search))
    assert time.breakdown["exchange"] == pytest.approx(COMPILED[file, on, options], rel=0.1)

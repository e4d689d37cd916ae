"""Faults of what is kept, and of how that is chosen."""

from __future__ import annotations

from tests.faults.fault import Fault

PARETO, CHUNKS = "tests/memory/test_pareto.py", "tests/memory/test_chunks.py"

MEMORY = (
    Fault(
        name="host_bytes_for_nothing",
        says="A choice is dropped from the front for one that takes more of the host's memory.",
        file="jaxpar/memory/pareto.py",
        old="if not (kept[own : len(found), 1:] <= block[i, 1:]).all(axis=1).any():",
        new="if not (kept[own : len(found), 1:2] <= block[i, 1:2]).all(axis=1).any():",
        caught_by=(f"{PARETO}::test_the_front_of_a_layer_is_what_trying_everything_leaves",),
    ),
    Fault(
        name="nearest_use_evicted",
        says="The chunk planner evicts the group that is used next of all.",
        file="jaxpar/memory/chunks.py",
        old="free.sort(key=lambda group: -self._distance(group, place))",
        new="free.sort(key=lambda group: self._distance(group, place))",
        caught_by=(f"{CHUNKS}::test_as_few_groups_are_loaded_as_any_plan_can",),
    ),
    Fault(
        name="half_a_log_sum_exp",
        says="Attention's log-sum-exp is counted in 16 bits.",
        file="jaxpar/memory/layer_shape.py",
        old='"attention_lse": shape.tokens * (shape.heads // shape.tensor) * FLOAT32_BYTES,',
        new='"attention_lse": shape.tokens * (shape.heads // shape.tensor) * shape.item_bytes,',
        caught_by=("tests/memory/test_closed_forms.py::test_a_form_is_the_sum_of_what_its_preset_saves[none-grouped]",),
    ),
)

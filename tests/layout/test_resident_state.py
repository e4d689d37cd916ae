"""The weights whose state stays on the device while the others' is on the host: what fits, and no more."""

from dataclasses import replace
from typing import Any

import jax
import pytest

from jaxpar.compiler.compile import plan_for
from jaxpar.config import Config
from jaxpar.config.plan import Plan
from jaxpar.config.reading.overrides import with_overrides
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layout.auto_remat import ESTIMATED
from jaxpar.layout.given_plan import check_plan
from jaxpar.layout.make_plan import make_plan, resolve_config
from jaxpar.layout.memory.estimate import estimate_memory
from jaxpar.layout.memory.nearest_fit import nearest_fit
from jaxpar.layout.memory.room import memory_room
from jaxpar.layout.memory.state_bytes import bytes_of, offloaded_state_bytes
from jaxpar.layout.resident_state import FILLED, resident_share
from jaxpar.layout.state import weight_states
from jaxpar.layout.step_layout import StepLayout
from tests.sentences import refused
from tests.small_run import small

LLAMA = (
    "model.preset=llama3-8b", "parallel.fsdp=8", "parallel.zero=3", "parallel.microbatches=8",
    "data.sequence_length=8192", "data.batch_size=64", "memory.optimizer_offload=host",
)  # fmt: skip
"""`configs/llama3_8b.yaml`, with its state on the host."""
ON = parse_cluster("h100:1x8")
GIB = 2**30


def planned(usable: float | None = None, *settings: str) -> tuple[Config, Plan]:
    """On H100s, of which a program may take so many GiB."""
    config = with_overrides(Config(), [*LLAMA, *settings])
    return plan_for(config, ON, usable=None if usable is None else int(usable * GIB))


def sizes(config: Config, plan: Plan) -> dict[str, int]:
    """Bytes of each weight's state on a device, from the shapes of arrays."""
    layout = StepLayout(config, plan)
    state = layout.abstract_state()
    each = weight_states(state.master, state.optimizer)
    return dict(zip(layout.weight_names, (bytes_of(jax.tree.leaves(one)) for one in each), strict=True))


def test_all_of_it_stays_where_all_of_it_fits():
    config, plan = planned()
    layout = StepLayout(config, plan)
    assert set(plan.resident_weights) == set(layout.weight_names) and offloaded_state_bytes(layout) == 0
    assert resident_share(config, plan) == 1
    alone = estimate_memory(config, replace(plan, resident_weights=(), optimizer_offload="none"))
    assert estimate_memory(config, plan) == alone


@pytest.mark.parametrize("usable", [51.0, 53.0, 56.0])
def test_as_much_stays_as_fits(usable: float):
    config, plan = planned(usable)
    each, layout = sizes(config, plan), StepLayout(config, plan)
    limit = FILLED * ESTIMATED * usable * GIB
    stays = {name: each[name] for name in plan.resident_weights}
    assert stays and set(stays) < set(each)
    found, none = (estimate_memory(config, one) for one in (plan, replace(plan, resident_weights=())))
    assert found.device <= limit < found.device + min(set(each.values()) - set(stays.values()))
    assert found.optimizer - none.optimizer == none.host - found.host == sum(stays.values())
    assert offloaded_state_bytes(layout) == sum(each.values()) - sum(stays.values())
    assert resident_share(config, plan) == pytest.approx(sum(stays.values()) / sum(each.values()), abs=1e-9)
    assert max(each.values()) in stays.values(), "the largest goes first"
    assert planned(usable)[1] == plan


@pytest.mark.parametrize(
    ("usable", "settings"),
    [
        (10.0, ()),
        (None, ("memory.weights_offload=host",)),
        (None, ("memory.optimizer_offload=none",)),
        (None, ("memory.optimizer_offload=file",)),
    ],
)
def test_nothing_stays_where_there_is_no_room_or_the_state_is_elsewhere(usable: float | None, settings: Any):
    assert planned(usable, *settings)[1].resident_weights == ()


def test_what_else_a_step_may_hold_does_not_depend_on_what_stays():
    config, plan = planned()
    bare = replace(plan, resident_weights=())
    assert plan.resident_weights and memory_room(config, plan, 80 * GIB) == memory_room(config, bare, 80 * GIB)


def test_the_nearest_that_fits_fits_when_it_is_planned():
    """XLA takes 15% more than the estimate, for the proposal too, whose state fills what is left."""
    limit, more = 24 * GIB, 1.15
    config, plan = planned(24.0, "memory.remat=full")
    rebuild = lambda changed: StepLayout(changed, plan_for(changed, ON, usable=limit)[1])
    needed = int(more * estimate_memory(config, plan).device)
    search = nearest_fit(StepLayout(config, plan), min(limit, needed - 1), rebuild, needed)
    assert search.nearest is not None
    proposed = rebuild(with_overrides(config, search.nearest.settings))
    assert more * estimate_memory(proposed.config, proposed.plan).device <= limit


def test_nothing_stays_on_devices_that_use_the_hosts_memory():
    config = resolve_config(small(memory={"optimizer_offload": "host"}), 1)
    assert make_plan(config, jax.devices()[0], usable=GIB).resident_weights == ()


def test_a_plan_of_other_weights_is_refused():
    config = resolve_config(small(memory={"optimizer_offload": "host"}), 1)
    plan = make_plan(config, jax.devices()[0])
    check_plan(replace(plan, resident_weights=("layers.all.mlp.up",)), config, jax.devices()[0])
    with refused(
        "plan.resident_weights: 'layers.all.mlp.upp' is not a weight of the model", "did you mean layers.all.mlp.up"
    ):
        check_plan(replace(plan, resident_weights=("layers.all.mlp.upp",)), config, jax.devices()[0])
    config = resolve_config(small(), 1)
    plan = make_plan(config, jax.devices()[0])
    with refused("plan.resident_weights: expected none with plan.optimizer_offload: none", "got layers.all.mlp.up"):
        check_plan(replace(plan, resident_weights=("layers.all.mlp.up",)), config, jax.devices()[0])

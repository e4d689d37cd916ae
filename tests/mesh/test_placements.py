"""ZeRO stages as placements, and which dim they split."""

import jax
import pytest
from jax.sharding import PartitionSpec as P
from jax.tree_util import keystr

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.plan import AxisSizes, Dtypes
from jaxpar.generation.generator import Generator
from jaxpar.layout.make_plan import make_plan, resolve_config
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.materialize import to_storage
from jaxpar.mesh.parameters import ParamSpec
from jaxpar.mesh.placements import added_dim, bytes_per_device, is_quantizable, local_shape, place, unreduced_axes
from jaxpar.mesh.rules import compute_rules
from tests.small_run import SmallRun, small

DTYPES = Dtypes(compute="bfloat16", storage="bfloat16", master="float32", gradient="float32", moments="float32")
SPECS = {
    "up": ParamSpec((3, 32, 48), ("layers", "embed", "mlp")),
    "tokens": ParamSpec((64, 32), ("vocab", "embed")),
    "scale": ParamSpec((3, 32), ("layers", "norm")),
}
SIZES = AxisSizes(replica=2, fsdp=2, expert=2, tensor=2)
COMPUTE = {"up": P("pipe", None, "tensor"), "tokens": P("tensor", None), "scale": P("pipe", None)}
SHARDED = COMPUTE | {"up": P("pipe", ("fsdp", "expert"), "tensor"), "tokens": P("tensor", ("fsdp", "expert"))}


def placed(specs=SPECS, sizes=SIZES, zero=3, over_replicas=False):
    rules = compute_rules()
    return place(specs, sizes, zero, DTYPES, rules, over_replicas=over_replicas)


@pytest.mark.parametrize(
    ("zero", "storage", "gradient", "optimizer"),
    [
        (0, COMPUTE, COMPUTE, COMPUTE),
        (1, COMPUTE, COMPUTE, SHARDED),
        (2, COMPUTE, SHARDED, SHARDED),
        (3, SHARDED, SHARDED, SHARDED),
    ],
)
def test_a_zero_stage_is_a_row_of_the_table(zero: int, storage: dict, gradient: dict, optimizer: dict):
    found = placed(zero=zero)
    assert found.compute.layout == COMPUTE
    assert (found.storage.layout, found.gradient.layout, found.optimizer.layout) == (storage, gradient, optimizer)
    dtypes = [role.dtype for role in (found.compute, found.storage, found.gradient, found.optimizer)]
    assert dtypes == ["bfloat16", "bfloat16", "float32", "float32"]


@pytest.mark.parametrize("offload", ["none", "host", "file"])
def test_a_bias_that_balances_a_router_is_in_float32_wherever_it_is_read(offload: str):
    experts = ExpertsConfig(count=8, per_token=2, router="sigmoid", width=16)
    memory = {"optimizer_offload": offload}
    run = SmallRun(small(model={"experts": experts}, precision={"compute": "bfloat16"}, memory=memory))
    layout, residency = run.step.layout, run.step.residency
    here = jax.eval_shape(residency.here, residency.abstract_input().master)
    stored = jax.eval_shape(lambda weights: to_storage(weights, layout.placements), here)
    cast = Generator(run.config, run.step.mesh, {"layers": {"all": []}})._cast
    for weights in (here, stored, jax.eval_shape(cast, layout.state_shapes.master)):
        assert weights["layers"]["all"]["mlp"]["bias"].dtype == "float32"
    assert stored["layers"]["all"]["mlp"]["router"].dtype == "bfloat16"


@pytest.mark.parametrize(
    ("zero", "storage", "gradient", "optimizer"),
    [
        (0, COMPUTE, COMPUTE, COMPUTE),
        (1, COMPUTE, COMPUTE, SHARDED),
        (2, COMPUTE, COMPUTE, SHARDED),  # as stage 1: many microbatches go through the same weights
        (3, SHARDED, SHARDED, SHARDED),
    ],
)
def test_under_a_pipeline_gradients_are_reduced_once_a_step_and_the_ends_gathered_once(
    zero: int, storage: dict, gradient: dict, optimizer: dict
):
    """Stage 3 alone gathers layers, and reduces their gradients, as often as it uses them; and never the ends."""
    specs = {"layers": {name: SPECS[name] for name in ("up", "scale")}, "embedding": {"tokens": SPECS["tokens"]}}
    parts = lambda layout, ends: {
        "layers": {name: layout[name] for name in ("up", "scale")}, "embedding": {"tokens": ends["tokens"]},
    }  # fmt: skip
    found = placed(specs, AxisSizes(pipe=3, fsdp=2, expert=2, tensor=2), zero)
    assert found.compute.layout == parts(COMPUTE, COMPUTE)
    assert found.storage.layout == parts(storage, COMPUTE)
    assert found.gradient.layout == parts(gradient, COMPUTE)
    assert found.optimizer.layout == parts(optimizer, optimizer)


def test_shared_ends_split_the_vocabulary_over_the_pipeline_too():
    rules = compute_rules(shared_embed_and_head=True)
    found = place(SPECS, AxisSizes(pipe=2, tensor=2), 0, DTYPES, rules)
    assert found.compute.layout == COMPUTE | {"tokens": P(("pipe", "tensor"), None)}


def test_no_role_is_split_over_replica_and_rest_is_over_context_too():
    found = placed(sizes=AxisSizes(replica=2, fsdp=2, context=2))
    assert found.storage.layout["up"] == P("pipe", ("fsdp", "context"), "tensor")
    assert set(unreduced_axes(found.compute.layout["up"])) == {"replica", "fsdp", "expert", "context"}


@pytest.mark.parametrize(
    ("sizes", "shape", "layout"),
    [
        ({"replica": 4, "fsdp": 2}, (3, 32, 48), P("pipe", ("fsdp", "replica"), "tensor")),
        ({"replica": 4, "fsdp": 2, "context": 2}, (3, 32, 48), P("pipe", ("fsdp", "context", "replica"), "tensor")),
        # 28 divides by 2, not by 8; another dim is not taken, since one exchange is along one dim.
        ({"replica": 4, "fsdp": 2}, (3, 28, 48), P("pipe", "fsdp", "tensor")),
        # Where nothing is sharded, replicas split the first dim that they divide.
        ({"replica": 4, "fsdp": 4}, (3, 30, 56), P("pipe", None, ("tensor", "fsdp"))),
        ({"replica": 4, "fsdp": 8}, (3, 30, 24), P("pipe", None, ("tensor", "replica"))),
        ({"replica": 4}, (3, 32, 48), P("pipe", "replica", "tensor")),
        ({"fsdp": 2}, (3, 32, 48), P("pipe", "fsdp", "tensor")),
    ],
)
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_state_over_replicas_splits_a_sharded_dim_further(zero, sizes, shape, layout):
    specs = {"w": ParamSpec(shape, ("layers", "embed", "mlp")), "norm": ParamSpec((3, 32), ("layers", "norm"))}
    both = [placed(specs, AxisSizes(**sizes | {"tensor": 2}), zero, over_replicas=own) for own in (False, True)]
    apart, found = both
    assert found.optimizer.layout == {"w": layout, "norm": P("pipe", None)}
    assert (found.compute, found.storage, found.gradient) == (apart.compute, apart.storage, apart.gradient)


@pytest.mark.parametrize(
    ("shape", "axes", "layout"),
    [
        ((3, 32, 48), ("layers", "embed", "mlp"), P("pipe", "fsdp", "tensor")),
        # 30 does not divide by 4, 48 / 2 (tensor) does.
        ((3, 30, 48), ("layers", "embed", "mlp"), P("pipe", None, ("tensor", "fsdp"))),
        # 30 does not divide by 4, nor does 44 / 2.
        ((3, 30, 44), ("layers", "embed", "mlp"), P("pipe", None, "tensor")),
        ((3, 30, 8, 16), ("layers", "embed", "heads", "head_dim"), P("pipe", None, ("tensor", "fsdp"), None)),
        ((3, 30, 6, 16), ("layers", "embed", "heads", "head_dim"), P("pipe", None, "tensor", "fsdp")),
        ((64, 30), ("vocab", "embed"), P(("tensor", "fsdp"), None)),
        # Vectors rest whole, however long.
        ((3, 32), ("layers", "norm"), P("pipe", None)),
        ((32,), ("norm",), P(None)),
        ((3, 48), ("layers", "mlp"), P("pipe", "tensor")),
    ],
)
def test_fsdp_splits_the_first_dim_that_divides_and_else_none(shape: tuple, axes: tuple, layout: P):
    assert placed({"w": ParamSpec(shape, axes)}, AxisSizes(fsdp=4, tensor=2)).storage.layout["w"] == layout


def test_nothing_is_split_over_axes_of_size_one():
    found = placed(sizes=AxisSizes(expert=2))
    assert found.storage.layout["up"] == P("pipe", "expert", "tensor")
    assert placed(sizes=AxisSizes(tensor=2)).storage.layout["up"] == COMPUTE["up"]


def test_the_dim_that_a_placement_splits_further():
    assert added_dim(P(None, "tensor"), P(None, ("tensor", "fsdp"))) == (1, ("fsdp",))
    assert added_dim(P("tensor"), P("tensor", ("fsdp", "expert"))) == (1, ("fsdp", "expert"))
    assert added_dim(P("tensor", None), P("tensor", None)) is None


def test_local_shapes_and_bytes_of_a_device():
    assert local_shape((3, 32, 48), SHARDED["up"], SIZES) == (3, 8, 24)
    assert local_shape((3, 32), COMPUTE["scale"], SIZES) == (3, 32)
    with pytest.raises(AssertionError, match="dim 1 of"):
        local_shape((3, 30, 48), SHARDED["up"], SIZES)
    whole, shard, vector = 3 * 32 * 48 // 2 + 64 * 32 // 2, 3 * 8 * 24 + 32 * 8, 3 * 32
    found = placed()
    assert bytes_per_device(SPECS, found.compute, SIZES) == 2 * (whole + vector)
    assert bytes_per_device(SPECS, found.storage, SIZES) == 2 * (shard + vector)
    assert bytes_per_device(SPECS, found.optimizer, SIZES) == 4 * (shard + vector)


def test_experts_lie_over_expert_and_their_rows_over_fsdp_at_rest():
    specs = {
        "up": ParamSpec((3, 4, 32, 48), ("layers", "experts", "embed", "mlp")),
        "router": ParamSpec((3, 32, 4), ("layers", "embed", "router")),
    }
    found = placed(specs)
    assert found.compute.layout == {"up": P("pipe", "expert", None, "tensor"), "router": P("pipe", None, None)}
    assert found.storage.layout == {
        "up": P("pipe", "expert", "fsdp", "tensor"),
        "router": P("pipe", ("fsdp", "expert"), None),
    }
    assert unreduced_axes(found.compute.layout["up"]) == ("replica", "fsdp", "context")
    assert "expert" in unreduced_axes(found.compute.layout["router"])


def test_norms_biases_and_routers_travel_exactly():
    config = resolve_config(small(model={"experts": ExpertsConfig(count=4), "mlp_bias": True, "qk_norm": True}), 1)
    layout = StepLayout(config, make_plan(config, jax.devices()[0], None))
    flat, _ = jax.tree_util.tree_flatten_with_path(layout.specs, is_leaf=lambda leaf: isinstance(leaf, ParamSpec))
    specs = {keystr(path, simple=True, separator="/"): spec for path, spec in flat}
    exact = {name for name, spec in specs.items() if not is_quantizable(spec)}
    assert exact == {name for name in specs if any(part in name for part in ("norm", "bias", "router"))}
    assert len(exact) >= 6 and len(specs) - len(exact) >= 8

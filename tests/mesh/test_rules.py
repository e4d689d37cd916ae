"""From logical axes to mesh axes."""

import pytest
from jax.sharding import PartitionSpec as P

from jaxpar.mesh.parameters import ParamSpec
from jaxpar.mesh.rules import Rules, axes_of_dim, compute_rules, mesh_axes_of, partition, rules_of
from tests.sentences import refused

QUERY = ParamSpec((2, 64, 8, 16), ("layers", "embed", "heads", "head_dim"))


def test_each_dim_takes_the_mesh_axes_of_its_logical_axis():
    rules = Rules(layers=("pipe",), heads=("tensor",), embed=("fsdp", "expert"))
    assert partition(QUERY, rules) == P("pipe", ("fsdp", "expert"), "tensor", None)
    assert partition(QUERY, Rules()) == P(None, None, None, None)


def test_two_logical_axes_that_claim_one_mesh_axis_are_both_named():
    rules = Rules(embed=("fsdp", "tensor"), heads=("tensor",))
    with refused("'embed'", "'heads'", "claim", "'tensor'", error=ValueError):
        partition(QUERY, rules)
    assert partition(ParamSpec((4, 4), ("embed", "mlp")), rules) == P(("fsdp", "tensor"), None)


def test_a_logical_axis_without_a_rule_is_named():
    with refused("'colour'", "('colour',)", "rule", error=ValueError):
        partition(ParamSpec((4,), ("colour",)), Rules())


def test_a_rule_that_names_no_mesh_axis_is_a_mistake_of_the_code():
    with pytest.raises(AssertionError, match="'data', which is no mesh axis"):
        partition(QUERY, Rules(embed=("data",)))


@pytest.mark.parametrize(("kv_heads", "tensor", "split"), [(8, 4, True), (4, 4, True), (2, 4, False), (6, 4, False)])
def test_kv_heads_are_split_over_tensor_where_they_divide_and_else_whole_on_every_rank(kv_heads, tensor, split):
    key = ParamSpec((8, kv_heads, 4), ("embed", "kv_heads", "head_dim"))
    rules = rules_of(key, compute_rules(), {"tensor": tensor})
    assert rules.kv_heads == (("tensor",) if split else ())
    assert rules.heads == rules.mlp == rules.vocab == ("tensor",)
    assert rules.embed == rules.norm == ()


def test_a_partition_is_read_back_by_dim_and_as_a_whole():
    layout = P(None, ("fsdp", "expert"), "tensor")
    assert [axes_of_dim(layout, dim) for dim in range(4)] == [(), ("fsdp", "expert"), ("tensor",), ()]
    assert mesh_axes_of(layout) == {"fsdp", "expert", "tensor"}

"""What weights of the next layer are tied to, where they are gathered in parts."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxpar.model.loop.layer_stack import _tied, next_block_tie


def weights_of(first: float) -> dict[str, dict[str, Any]]:
    names = {"attention": ("query", "output"), "mlp": ("gate", "up", "down", "down_bias"), "mlp_norm": ("scale",)}
    numbers = iter(range(100))
    return {part: {name: jnp.float32(first + next(numbers)) for name in own} for part, own in names.items()}


BLOCKS = ("attention", "output"), ("mlp", "down")


@pytest.mark.parametrize("host", [False, True], ids=["weights", "and what comes from the host"])
@pytest.mark.parametrize(
    ("part", "names", "late"),
    [
        ("mlp", "down", {"10mlpdown", "10mlpdown_bias"}),
        ("mlp", "", {"10mlpgate", "10mlpup", "10mlpdown", "10mlpdown_bias"}),
        ("attention", "output", {"10attentionoutput"}),
    ],
)
def test_attention_of_the_next_layer_is_tied_to_what_a_part_uses(part: str, names: str, late: set[str], host: bool):
    """To what it uses last, so that the gather may run beside the products before; nothing else waits for it. In the
    middle of a backward so is what comes from the host."""
    coming, own = (weights_of(0.0), jnp.float32(50)), (weights_of(100.0), jnp.float32(60))
    tie = partial(_tied, "attention", part, names, host=host)
    program = jax.make_jaxpr(tie)(coming, own)
    paths = [jax.tree_util.keystr(path, simple=True) for path, _ in jax.tree_util.tree_leaves_with_path((coming, own))]
    (barrier,) = program.eqns
    arguments: list[Any] = program.jaxpr.invars
    assert barrier.primitive.name == "optimization_barrier"
    tied = {paths[arguments.index(variable)] for variable in barrier.invars}
    assert tied == {"00attentionquery", "00attentionoutput", *(["01"] if host else [])} | late
    assert jax.tree.all(jax.tree.map(jnp.array_equal, jax.jit(tie)(coming, own), (coming, own)))


@pytest.mark.parametrize(
    ("before", "backward", "part", "names", "host"),
    [
        (1, False, "mlp", "", False),
        (1, True, "mlp", "down", False),
        (0, False, "attention", "output", False),
        (0, True, "attention", "output", True),
    ],
)
def test_a_backward_which_begins_with_the_feed_forward_ties_only_its_last_matrix(
    before: int, backward: bool, part: str, names: str, host: bool
):
    coming, own = (weights_of(0.0), jnp.float32(50)), (weights_of(100.0), jnp.float32(60))
    tie = next_block_tie(BLOCKS, before, backward=backward)
    assert tie is not None
    programs = [
        jax.make_jaxpr(each)(coming, own) for each in (tie, partial(_tied, "attention", part, names, host=host))
    ]
    assert str(programs[0]) == str(programs[1])


def test_nothing_is_tied_without_a_part():
    assert next_block_tie(BLOCKS, None, backward=True) is None

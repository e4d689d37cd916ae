"""Executions: products of trip counts, shares of branches, and what a recomputation asked for."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpar.compiler.program.hlo.records import Module, ProgramError
from jaxpar.compiler.program.loops import executions, trip_count
from pallas_kernels.attention.cudnn_packed import CALLS
from pallas_kernels.attention.work import visiting
from pallas_kernels.masks import Mask, visited_blocks
from tests.compiler.program.programs import TINY, compiled, computation, condition, loop, module
from tests.sentences import refused

START = "%start = f32[] parameter(0)"


def nested(outer: int, inner: int, name: str = "") -> Module:
    """A loop in a loop."""
    body = f"%start.1 = f32[] parameter(0)\n{loop('within', 'deep', inner).replace('%start', '%start.1')}"
    deep = computation("deep", "%d = f32[] parameter(0)\n%twice = f32[] add(%d, %d)")
    line = loop("around", "outer", outer) + (f', metadata={{op_name="{name}"}}' if name else "")
    return module(f"{START}\n{line}", deep, condition("deep"), computation("outer", body), condition("outer"))


def test_counts_of_nested_loops_multiply():
    counts = executions(nested(5, 3)).counts
    assert (counts["main"], counts["outer"], counts["deep"]) == (1, 5, 15)


def test_a_loop_without_a_known_trip_count_is_an_error_that_names_its_line():
    made = f"{START}\n%w = f32[] while(%start), condition=%b_condition, body=%b"
    with refused("line ", "w loops", error=ProgramError):
        executions(module(made, computation("b", "%x = f32[] parameter(0)"), condition("b")))


@pytest.mark.parametrize(
    ("scopes", "times"),
    [
        (CALLS, 1),  # documents decide how many there are, nearly always one
        ("transpose(jvp(grouped_matmul.rows1000))/grouped_matmul.block512", 2),
        ("grouped_matmul.rows1024/grouped_matmul.block128", 8),
        ("further_rounds", 0),
        ("further_rounds/grouped_matmul.rows64/grouped_matmul.block8", 0),
    ],
)
def test_loops_whose_length_data_decide_run_as_often_as_is_expected(scopes: str, times: int):
    scope = f'metadata={{op_name="step/{scopes}/while"}}'
    made = f"{START}\n%w = f32[] while(%start), condition=%b_condition, body=%b, {scope}"
    found = executions(module(made, computation("b", "%x = f32[] parameter(0)"), condition("b")))
    assert found.counts["b"] == times


CHOICE = (
    "%p = pred[] constant(true)\n%start = f32[] parameter(0)\n"
    "%c = f32[] conditional(%p, %start, %start), true_computation=%yes, false_computation=%no"
)
YES, NO = computation("yes", "%y = f32[] parameter(0)"), computation("no", "%n = f32[] parameter(0)")


def test_branches_count_every_time():
    made = module(CHOICE, YES, NO)
    counts = executions(made)
    assert (counts.counts["yes"], counts.counts["no"]) == (1, 1)
    assert [op.name for op in counts.conditionals] == ["c"]


@pytest.mark.parametrize(
    ("mask", "pairs"),
    [
        (Mask(), 3), (Mask(causal=False), 4), (Mask(window=200), 3), (Mask(window=1), 2),
        (Mask(causal=False, window=1), 2),
    ],
)  # fmt: skip
def test_blocks_of_attention_count_as_often_as_the_mask_keeps_some_of_them(mask: Mask, pairs: int):
    tokens = jnp.arange(512).reshape(2, 1, 256)
    assert visited_blocks(mask, tokens, tokens).sum() == pairs

    def negative(x: jax.Array) -> jax.Array:
        with visiting(mask, 512, 256, 256):
            return lax.neg(x)

    scope = jax.make_jaxpr(negative)(1.0).eqns[0].source_info.name_stack
    made = module(f'{CHOICE}, metadata={{op_name="jit(f)/while/body/{scope}/cond"}}', YES, NO)
    counts = executions(made)
    assert counts.counts["yes"] == pairs / 4 and not counts.conditionals


@pytest.mark.parametrize("name", TINY)
def test_compiled_loops_have_their_trip_counts(name: str):
    loops = [op for c in compiled(name).computations.values() for op in c.ops if op.opcode == "while"]
    # Four layers forward; backward XLA peels the first off, whose input comes from the host.
    assert sorted(trip_count(op) for op in loops) == [3, 4]

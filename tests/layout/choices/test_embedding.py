"""What a plan sends of the embedding: its table, or the rows of tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import pytest

from jaxpar.config.plan import AxisSizes
from jaxpar.layout.choices.embedding import check_embedding_messages, embedding_messages
from jaxpar.layout.make_plan import make_plan, resolve_config
from jaxpar.training.run.plan_table import _overlap_rows
from tests.sentences import refused
from tests.small_run import small


class OnGpu:
    """A device, as the choice sees it."""

    platform = "gpu"


def chosen(rows: int = 1, precision: dict[str, Any] | None = None, **parallel: Any) -> tuple[str, ...]:
    config = small(model={"vocab": 512, "vocab_multiple": 1}, parallel=parallel, precision=precision or {})
    own = config.parallel
    axes = AxisSizes(own.pipe, own.replica, own.fsdp, own.expert, own.context, own.tensor)
    device: Any = OnGpu()
    return tuple(embedding_messages(config, axes, device, rows))


@pytest.mark.parametrize(
    ("rows", "parallel", "sent", "why"),
    [
        # 32 tokens a row, and 512 entries: a token's row travels twice under ZeRO-3, and so does the table.
        (15, {"fsdp": 4}, "rows", "480 tokens"),
        (16, {"fsdp": 4}, "table", "512 tokens"),
        (31, {"fsdp": 4, "context": 2}, "rows", "496 tokens"),
        (8, {"fsdp": 4, "tensor": 2}, "table", "256 entries"),
        (15, {"fsdp": 4, "zero": 2}, "rows", ""),
        (1, {"fsdp": 4, "collectives": "hierarchical"}, "table", "two levels"),
        (1, {"fsdp": 4, "secondary_shard": 2}, "table", "secondary shards"),
        (1, {"fsdp": 64}, "table", "32 elements"),
        (1, {"fsdp": 4, "embedding_messages": "table"}, "table", "named by"),
        (99, {"fsdp": 4, "embedding_messages": "rows"}, "rows", "named by"),
        (1, {"fsdp": 4, "zero": 1}, "table", ""),
        (1, {"replica": 4}, "table", ""),
        (1, {"pipe": 2, "fsdp": 2, "microbatches": 2}, "table", ""),
    ],
)
def test_rows_where_a_microbatch_has_fewer_bytes_of_them(rows: int, parallel: dict[str, Any], sent: str, why: str):
    found = chosen(rows, **parallel)
    assert found[0] == sent and why in found[1] and bool(why) <= bool(found[1])


def test_gradients_in_half_the_bytes_are_compared_so():
    # In bfloat16 a token's row is 2 + 2 bytes an element, the table's 2 and its gradient's 4 or 2.
    halves = {"compute": "bfloat16"}
    assert chosen(23, halves, fsdp=4)[0] == "rows" and chosen(24, halves, fsdp=4)[0] == "table"
    assert chosen(16, halves | {"gradient": "bfloat16"}, fsdp=4)[0] == "table"


@pytest.mark.parametrize(
    ("parallel", "precision", "why"),
    [
        ({"fsdp": 4, "zero": 1}, {}, "parallel.zero 2 or 3"),
        ({"replica": 4}, {}, "several ranks"),
        ({"pipe": 2, "fsdp": 2, "microbatches": 2}, {}, "once a step"),
        ({"fsdp": 64}, {}, "model.embed"),
        ({"fsdp": 4}, {"gradient_wire": "int8"}, "codes"),
    ],
)
def test_rows_that_cannot_be_exchanged_are_refused(parallel: dict[str, Any], precision: dict[str, Any], why: str):
    with refused("parallel.embedding_messages: rows are not exchanged", why, "expected auto or table"):
        chosen(1, precision, **parallel, embedding_messages="rows")


def test_a_plan_names_what_is_sent_and_is_checked():
    config = resolve_config(small(parallel={"fsdp": 4, "embedding_messages": "rows"}), 4)
    plan = make_plan(config, jax.devices()[0])
    assert ("embedding", "rows sent", "named by parallel.embedding_messages") in _overlap_rows(plan)
    check_embedding_messages(plan, config)
    other = resolve_config(small(parallel={"fsdp": 4, "zero": 1}), 4)
    with refused("plan.embedding_messages: rows are not exchanged", "expected table"):
        check_embedding_messages(replace(plan, zero=1), other)

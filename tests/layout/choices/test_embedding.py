"""What a plan sends of the embedding: its table, or the rows of tokens."""

from dataclasses import replace
from typing import Any

import jax
import pytest

from jaxpar.config.plan import AxisSizes
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layout.choices.embedding import check_embedding_messages, embedding_messages
from jaxpar.layout.choices.reasons import choice_rows
from jaxpar.layout.make_plan import make_plan, resolve_config
from tests.sentences import refused
from tests.small_run import small


class OnGpu:
    """A device, as the choice sees it."""

    platform = "gpu"


def chosen(
    rows: int = 1,
    precision: dict[str, Any] | None = None,
    cluster: str | None = "h100:1x8",
    rank: int | None = None,
    tied: bool = False,
    **parallel: Any,
) -> tuple[str, str]:
    """With rows of 4,096 tokens and a table of 65,536 entries."""
    config = small(
        model={"vocab": 65536, "vocab_multiple": 1, "embed": 1024, "tied": tied},
        data={"sequence_length": 4096},
        parallel=parallel,
        precision=precision or {},
        lora={"rank": rank},
    )
    own = config.parallel
    axes = AxisSizes(own.pipe, own.replica, own.fsdp, own.expert, own.context, own.tensor)
    device: Any = OnGpu()
    found = embedding_messages(config, axes, device, rows, None if cluster is None else parse_cluster(cluster))
    return found.name, found.reason


@pytest.mark.parametrize(
    ("rows", "parallel", "sent", "why"),
    [
        # Under ZeRO-3 a token's row travels twice, and so does the table.
        (15, {"fsdp": 8}, "rows", "by the table"),
        (17, {"fsdp": 8}, "table", "by the table"),
        (29, {"fsdp": 4, "context": 2}, "rows", ""),
        (8, {"fsdp": 4, "tensor": 2}, "table", ""),
        (14, {"fsdp": 8, "zero": 2}, "rows", ""),
        (1, {"fsdp": 8, "hpz": 2}, "table", "hpZ shards"),
        (1, {"fsdp": 3}, "table", "1024 elements"),
        (1, {"fsdp": 8, "overlap": {"embedding_messages": "table"}}, "table", "named by"),
        (99, {"fsdp": 8, "overlap": {"embedding_messages": "rows"}}, "rows", "named by"),
        (1, {"fsdp": 8, "zero": 1}, "table", ""),
        (1, {"replica": 8}, "table", ""),
        (1, {"pipe": 2, "fsdp": 4, "microbatches": 2}, "table", ""),
    ],
)
def test_rows_where_a_microbatch_sends_them_in_less_time(rows: int, parallel: dict[str, Any], sent: str, why: str):
    found = chosen(rows, **parallel)
    assert found[0] == sent and why in found[1]


def test_between_hosts_each_rank_sends_its_rows_over_its_own_card():
    assert chosen(4, fsdp=8)[0] == chosen(1, cluster="h100:8x8", fsdp=64)[0] == "rows"
    assert chosen(4, cluster="h100:8x8", fsdp=64)[0] == "table"


def test_gradients_in_half_the_bytes_are_timed_so():
    # In bfloat16 a token's row is 2 + 2 bytes an element, the table's 2 and its gradient's 4 or 2.
    halves = {"compute": "bfloat16"}
    assert chosen(22, halves, fsdp=8)[0] == "rows" and chosen(25, halves, fsdp=8)[0] == "table"
    assert chosen(18, halves | {"gradient": "bfloat16"}, fsdp=8)[0] == "table"


@pytest.mark.parametrize(
    ("rows", "zero", "trained", "frozen"), [(11, 3, "rows", "rows"), (20, 3, "rows", "table"), (14, 2, "rows", "table")]
)
def test_of_a_frozen_table_nothing_is_sent_in_the_backward(rows: int, zero: int, trained: str, frozen: str):
    halves = {"compute": "bfloat16", "storage": "bfloat16"}
    assert chosen(rows, halves, fsdp=8, zero=zero)[0] == trained
    sent, why = chosen(rows, halves, fsdp=8, zero=zero, rank=8)
    assert sent == frozen and (why == "") == (zero == 2)


def test_a_tied_table_is_sent_unless_rows_are_named():
    sent, why = chosen(1, tied=True, fsdp=8)
    assert sent == "table" and "the head gathers the tied table" in why
    assert chosen(1, tied=True, fsdp=8, overlap={"embedding_messages": "rows"})[0] == "rows"


def test_of_unknown_links_the_table_is_sent():
    assert chosen(1, cluster=None, fsdp=8) == ("table", "the speeds of these GPUs' links are unknown")


@pytest.mark.parametrize(
    ("parallel", "precision", "why"),
    [
        ({"fsdp": 4, "zero": 1}, {}, "parallel.zero 2 or 3"),
        ({"replica": 4}, {}, "several ranks"),
        ({"pipe": 2, "fsdp": 2, "microbatches": 2}, {}, "once a step"),
        ({"fsdp": 3}, {}, "model.embed"),
        ({"fsdp": 4, "quantized": {"gradients": "int8"}}, {}, "quantized messages"),
    ],
)
def test_rows_that_cannot_be_exchanged_are_refused(parallel: dict[str, Any], precision: dict[str, Any], why: str):
    with refused("parallel.overlap.embedding_messages: rows are not exchanged", why, "expected auto or table"):
        chosen(1, precision, **parallel, overlap={"embedding_messages": "rows"})


def test_rows_of_a_frozen_table_that_no_rank_sends_are_refused():
    assert chosen(1, fsdp=4, zero=3, rank=8, overlap={"embedding_messages": "rows"})[0] == "rows"
    with refused(
        "parallel.overlap.embedding_messages: rows are not exchanged", "it is frozen (lora.rank: 8)", "auto or table"
    ):
        chosen(1, fsdp=4, zero=2, rank=8, overlap={"embedding_messages": "rows"})


def test_a_plan_names_what_is_sent_and_is_checked():
    config = resolve_config(small(parallel={"fsdp": 4, "overlap": {"embedding_messages": "rows"}}), 4)
    plan = make_plan(config, jax.devices()[0])
    assert ("embedding messages", "rows", "named by parallel.overlap.embedding_messages") in choice_rows(plan)
    check_embedding_messages(plan, config)
    other = resolve_config(small(parallel={"fsdp": 4, "zero": 1}), 4)
    with refused("plan.embedding_messages: rows are not exchanged", "expected table"):
        check_embedding_messages(replace(plan, zero=1), other)

"""Faults of prepared text."""

from __future__ import annotations

from tests.faults.fault import Fault

PREPARED = (
    Fault(
        name="tokens_not_checked",
        description="A block of tokens is not compared with its sum before it is used.",
        file="jaxpar/data/tokens/sharded_tokens.py",
        old="if block_sum(content) != self._sums[block].tobytes():",
        new="if len(block_sum(content)) != len(self._sums[block].tobytes()):",
        caught_by=(
            "tests/data/tokens/test_sharded_tokens.py::test_a_damaged_block_is_not_given_out_and_the_others_are",
        ),
    ),
    Fault(
        name="counted_tokens_shifted",
        description="A label counts where the token before it is counted.",
        file="jaxpar/data/packing.py",
        old="same & (counted[1:] != 0)",
        new="same & (counted[:-1] != 0)",
        caught_by=("tests/data/test_packing.py::test_a_label_counts_where_the_stream_counts_it_as_a_target[True]",),
    ),
    Fault(
        name="sources_begin_anew",
        description="When the weights of a mixture change, each source begins at its first row.",
        file="jaxpar/data/mixture.py",
        old="used[identity] = used.get(identity, 0) + now[identity] - before[identity]",
        new="used[identity] = 0",
        caught_by=("tests/data/test_mixture.py::test_when_weights_change_each_source_goes_on_where_it_was",),
    ),
    Fault(
        name="first_line_of_a_unit_lost",
        description="A line that begins where a unit of work begins belongs to neither unit.",
        file="jaxpar/data/prepare/input/documents.py",
        old="content.seek(first - 1)\n            place = first - 1 +",
        new="content.seek(first)\n            place = first +",
        caught_by=(
            "tests/data/prepare/test_documents.py::test_units_of_any_size_hold_each_document_once_in_order[a.jsonl]",
        ),
    ),
)

"""Faults of prepared text."""

from tests.faults.fault import Fault

PREPARED = (
    Fault("tokens_not_checked", "A block of tokens is not compared with its sum before it is used.",
        "jaxpar/data/tokens/sharded_tokens.py",
        old="if block_sum(content) != self._sums[block].tobytes():",
        new="if len(block_sum(content)) != len(self._sums[block].tobytes()):",
        caught_by=(
            "tests/data/tokens/test_sharded_tokens.py::test_a_damaged_block_is_not_given_out_and_the_others_are",)),
    Fault("counted_tokens_shifted", "A label counts where the token before it is counted.",
        "jaxpar/data/document_rows.py",
        old="loss_mask[span][1:] != 0",
        new="loss_mask[span][:-1] != 0",
        caught_by=(
            "tests/data/test_document_rows.py"
            "::test_an_epoch_has_each_document_once_and_each_row_counts_a_token",)),
    Fault("conversations_without_a_counted_token", "A conversation of which nothing counted is left has a row.",
        "jaxpar/data/document_rows.py",
        old="(targets == 0).any(1)",
        new="(targets < 0).any(1)",
        caught_by=(
            "tests/data/test_document_rows.py::test_long_conversations_are_left_out_or_truncated_and_counted",)),
    Fault("weight_of_a_message_ignored", "A message of the assistant with the weight 0 is trained on.",
        "jaxpar/data/chat/messages.py",
        old="message.get(WEIGHT) != 0 and",
        new="message.get(WEIGHT) != -1 and",
        caught_by=("tests/data/chat/test_turns.py::test_messages_that_are_not_to_be_trained_on_are_not_counted",)),
    Fault("next_role_not_counted", "Where the token of the next role ends a turn, it is not counted.",
        "jaxpar/data/chat/encoding.py",
        old="next_token is None or first == last",
        new="next_token is None or first <= last",
        caught_by=(
            "tests/data/chat/test_turns.py::test_the_token_of_the_next_role_is_counted_where_it_ends_the_turn[marked]",
        )),
    Fault("sources_begin_anew", "When the weights of a mixture change, each source begins at its first row.",
        "jaxpar/data/mixture.py",
        old="row = self._phases[index].used.get(identity, 0) + count - self._before[index][identity]",
        new="row = count - self._before[index][identity]",
        caught_by=("tests/data/test_mixture.py::test_when_weights_change_each_source_goes_on_where_it_was",)),
    Fault("first_line_of_a_unit_lost", "A line that begins where a unit of work begins belongs to neither unit.",
        "jaxpar/data/prepare/input/documents.py",
        old="content.seek(first - 1)\n            offset = first - 1 +",
        new="content.seek(first)\n            offset = first +",
        caught_by=(
            "tests/data/prepare/test_documents.py::test_units_of_any_size_hold_each_document_once_in_order[a.jsonl]",)),
)  # fmt: skip

"""Faults of what is predicted of a step."""

from __future__ import annotations

from tests.faults.fault import Fault

KINDS = "tests/planner/search/test_kinds.py"

PLANNER = (
    Fault(
        name="a_padded_layer_counted",
        description="The planner counts the time of padding that a branch leaves out.",
        file="jaxpar/planner/step_time/step.py",
        old="run = own + padding if why not in (None, GATHERED) else own",
        new="run = own + padding",
        caught_by=(f"{KINDS}::test_a_slot_that_pads_a_chunk_takes_time_where_it_runs_alone[left out]",),
    ),
    Fault(
        name="least_share_of_several_classes",
        description="A layout of several classes waits for the least share of their messages.",
        file="jaxpar/planner/step_time/exposed.py",
        old="else max(share(message, kind, generation, rows) for kind in kinds)",
        new="else min(share(message, kind, generation, rows) for kind in kinds)",
        caught_by=(
            "tests/planner/step_time/test_shares.py::test_of_several_classes_programs_with_just_these_count_or_the_largest_share",
        ),
    ),
    Fault(
        name="a_padded_row_without_memory",
        description="The planner leaves padding rows out of a chunk's weights and activations.",
        file="jaxpar/planner/step_time/chunks.py",
        old="return common_sequence(chunk_kinds(model, lengths))",
        new="return max(chunk_kinds(model, lengths), key=len)",
        caught_by=(f"{KINDS}::test_rows_that_pad_are_updated_like_any_other",),
    ),
    Fault(
        name="a_local_layer_priced_with_the_global_window",
        description="The planner times layers of every kind as those of the model without kinds.",
        file="jaxpar/planner/step_time/layer_times.py",
        old="for kind, own in kind_models(model).items()",
        new="for kind, own in dict.fromkeys(kind_models(model), model).items()",
        caught_by=(f"{KINDS}::test_a_layer_attends_to_the_window_of_its_kind",),
    ),
    Fault(
        name="copies_of_both_directions_in_turn",
        description="In compiled programs, copies from the host wait for copies to it.",
        file="jaxpar/compiler/program/attribution.py",
        old='return self.kind if self.transfer.channel == "host" else "wire"',
        new='return "to_host" if self.transfer.channel == "host" else "wire"',
        caught_by=("tests/compiler/program/test_schedule.py::test_copies_to_and_from_the_host_go_at_the_same_time",),
    ),
)

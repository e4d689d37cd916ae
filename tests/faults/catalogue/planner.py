"""Faults of what is predicted of a step."""

from tests.faults.fault import Fault

KINDS = "tests/planner/search/test_kinds.py"

PLANNER = (
    Fault(
        name="an_anchor_that_narrows_without_end",
        description="An interval after measured runs is narrower than left-out runs of one system are apart.",
        file="jaxpar/planner/step_time/interval.py",
        old="return self.beside if self.runs else self.alone",
        new="return self.beside / self.runs if self.runs else self.alone",
        caught_by=("tests/planner/test_anchors.py::test_an_anchor_narrows_no_further_than_left_out_runs_are_apart",),
    ),
    Fault(
        name="a_source_beside_its_own_software",
        description="A source's interval follows from runs of its own software too.",
        file="benchmarks/validation/leave_out.py",
        old="if not software[o] & software[name]}",
        new="if o != name}",
        caught_by=(
            "tests/benchmarks/validation/test_leave_out.py::test_all_sources_of_a_software_are_left_out_together",
        ),
    ),
    Fault(
        name="a_padded_layer_counted",
        description="The planner counts the time of padding that a branch leaves out.",
        file="jaxpar/planner/step_time/step.py",
        old="run = own + padding if why not in (None, GATHERED) else own",
        new="run = own + padding",
        caught_by=(f"{KINDS}::test_a_slot_that_pads_a_chunk_takes_time_where_it_runs_alone[left out]",),
    ),
    Fault(
        name="messages_beside_all_compute",
        description="Messages of weights are hidden by all of a layer's compute.",
        file="jaxpar/planner/step_time/overlap.py",
        old='yield Repeat("beside", layer, beside)',
        new='yield Repeat("beside", layer)',
        caught_by=(
            "tests/planner/step_time/test_overlap.py::test_short_messages_wait_for_their_least_share_and_long_ones_for_what_compute_does_not_hide",
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
        file="jaxpar/cost/layer_case.py",
        old="for kind, kind_model in kind_models(model).items()",
        new="for kind, kind_model in dict.fromkeys(kind_models(model), model).items()",
        caught_by=(f"{KINDS}::test_a_layer_attends_to_the_window_of_its_kind",),
    ),
    Fault(
        name="copies_of_both_directions_in_turn",
        description="In compiled programs, copies from the host wait for copies to it.",
        file="jaxpar/compiler/program/attribution.py",
        old="return self.kind\n",
        new='return "to_host"\n',
        caught_by=("tests/compiler/program/test_schedule.py::test_copies_to_and_from_the_host_go_at_the_same_time",),
    ),
    Fault(
        name="a_ring_for_every_all_reduce",
        description="All-reduces over hundreds of hosts go round one ring.",
        file="jaxpar/cost/messages.py",
        old="return self.start + min(by_ring, by_trees)",
        new="return self.start + by_ring",
        caught_by=(
            "tests/benchmarks/validation/test_collectives.py::test_all_reduces_over_hundreds_of_hosts_are_within_a_quarter",
        ),
    ),
    Fault(
        name="copies_of_a_map_for_nothing",
        description="Activations that a map offloads cost no copies.",
        file="jaxpar/planner/step_time/layer_times.py",
        old="return named or fraction * kept_bytes(case, remat)",
        new="return fraction * kept_bytes(case, remat)",
        caught_by=(
            "tests/planner/step_time/test_compiled_rows.py::test_activations_that_a_map_offloads_are_copied_as_those_of_a_share",
        ),
    ),
    Fault(
        name="norms_of_heads_for_nothing",
        description="Norms of queries and keys take less time than XLA's passes over memory.",
        file="jaxpar/cost/layer.py",
        old="] = (2.0, 6.0)",
        new="] = (0.0, 3.0)",
        caught_by=("tests/cost/test_recomputation.py::test_norms_of_queries_move_what_their_passes_do",),
    ),
)

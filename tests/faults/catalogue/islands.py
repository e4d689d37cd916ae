"""Faults of islands and their outer optimizer."""

from tests.faults.fault import Fault

STEPS = "tests/training/islands/test_steps.py"
ON_HOST = "tests/training/islands/test_outer_on_host.py"
ROUNDS = "tests/training/island_jobs/test_rounds.py"
PLANNED = "tests/planner/search/test_islands.py"
ISLANDS = (
    Fault(
        name="outer_momentum_without_look_ahead",
        description="Nesterov momentum of outer updates is plain momentum.",
        file="jaxpar/optim/outer.py",
        old="gradient + arguments.momentum * momentum if nesterov else momentum",
        new="momentum",
        caught_by=("tests/optim/test_outer.py::test_updates_are_those_of_sgd_with_momentum[True]",),
    ),
    Fault(
        name="a_fragment_sent_in_place_of_the_next",
        description="The first fragment of a period is the second one.",
        file="jaxpar/optim/outer.py",
        old="(step // (every // fragments) - 1) % fragments",
        new="(step // (every // fragments)) % fragments",
        caught_by=("tests/optim/test_outer.py::test_each_fragment_is_sent_once_in_every_period",),
    ),
    Fault(
        name="islands_give_up_their_weights",
        description="An island takes the global weights alone, whatever islands.mix.",
        file="jaxpar/optim/outer.py",
        old="shared + mix * (local - shared)",
        new="shared + 0 * mix * (local - shared)",
        caught_by=("tests/optim/test_outer.py::test_an_island_goes_on_with_its_share_of_both_weights",),
    ),
    Fault(
        name="an_eager_island_applies_all_of_its_outer_gradient",
        description="The local share of an eager update is the outer gradient, not its share of the mean.",
        file="jaxpar/optim/outer.py",
        old="rate=arguments.rate / islands",
        new="rate=arguments.rate",
        caught_by=(
            "tests/optim/test_outer.py::test_eager_updates_are_those_of_the_papers_algorithm[3-False-True]",
            "tests/optim/test_outer.py::test_eager_updates_are_those_of_the_papers_algorithm[2-True-False]",
        ),
    ),
    Fault(
        name="eager_outer_gradients_from_the_global_weights",
        description="An eager island's outer gradient is from the global weights, not from those of its round's start.",
        file="jaxpar/training/residency/islands.py",
        old="self._gradient(eager.start, master, step)",
        new="self._gradient(outer.weights, master, step)",
        caught_by=(
            "tests/training/islands/test_eager.py::test_an_island_starts_a_round_where_the_papers_algorithm_does[one]",
        ),
    ),
    Fault(
        name="rows_beyond_the_last_written",
        description="Of outer state in host memory, the last row is written where a rank lacks rows of a fragment.",
        file="jaxpar/memory/streaming.py",
        old="jnp.where(rows[index] <= last, new, old)",
        new="jnp.where(rows[index] <= last + 1, new, old)",
        caught_by=(f"{ON_HOST}::test_a_run_has_the_same_bits_with_the_outer_state_on_the_host[eager fragments, pipe]",),
    ),
    Fault(
        name="outer_gradients_are_summed",
        description="The outer gradient is the sum over islands, not the mean.",
        file="jaxpar/training/residency/island_message.py",
        old="like[index], message_dtype) / islands",
        new="like[index], message_dtype)",
        caught_by=(f"{STEPS}::test_sgd_exchanged_each_step_is_data_parallelism",),
    ),
    Fault(
        name="all_islands_take_all_rows",
        description="Rows of a batch are not split over islands.",
        file="jaxpar/layout/step_layout.py",
        old="BATCH_AXES if self.islands else DATA_AXES",
        new="DATA_AXES",
        caught_by=(f"{STEPS}::test_exchanges_are_updates_with_nesterov_momentum[2]",),
    ),
    Fault(
        name="rows_of_islands_follow_microbatches",
        description="An island has a part of each microbatch's rows, which are others with another number of them.",
        file="jaxpar/runtime/batch.py",
        old="np.moveaxis(parts, 0, -2)",
        new="parts",
        caught_by=(
            "tests/runtime/test_batch.py::test_an_island_has_the_same_part_of_a_batch_for_any_number_of_microbatches[2]",
        ),
    ),
    Fault(
        name="messages_of_few_bits_lost",
        description="An outer gradient of few bits is that of one island.",
        file="jaxpar/training/residency/island_message.py",
        old="each.reshape(islands, *like.shape).sum(axis=0)",
        new="islands * each.reshape(islands, *like.shape)[0]",
        caught_by=(f"{STEPS}::test_messages_of_few_bits_have_the_outer_gradient_of_each_island[int4]",),
    ),
    Fault(
        name="islands_wait_longer_for_the_global_weights",
        description="Islands take the global weights a step after islands.delay.",
        file="jaxpar/training/residency/islands.py",
        old="new._replace(master=self._change_if_sent(done - delay,",
        new="new._replace(master=self._change_if_sent(done - delay - 1,",
        caught_by=(
            f"{STEPS}::test_a_fragment_is_sent_beside_a_step_and_reaches_the_islands_after_the_delay[4-1-3-0.0]",
        ),
    ),
    Fault(
        name="outer_messages_in_float32",
        description="Outer gradients travel as they are, whatever islands.wire.",
        file="jaxpar/training/residency/islands.py",
        old="return self.layout.config.islands.wire",
        new="return None",
        caught_by=(
            "tests/compiler/steps/test_islands.py::test_the_outer_message_runs_beside_the_step_that_carries_it[int4-all-gather]",
        ),
    ),
    Fault(
        name="a_checkpoint_loses_the_weights_of_islands",
        description="Islands begin with the global weights where a run continues.",
        file="jaxpar/training/residency/on_device.py",
        old='''        """A restored state in the form that steps take."""
        return state
''',
        new='''        """A restored state in the form that steps take."""
        return state._replace(optimizer={**state.optimizer, ISLAND_WEIGHTS: self._island_copies(state.master)})
''',
        caught_by=(
            "tests/training/islands/test_runs.py::test_a_run_goes_on_with_the_same_bits_though_a_message_was_due"
            "[on the devices]",
        ),
    ),
    Fault(
        name="more_fragments_than_layers",
        description="Fragments without a layer are accepted.",
        file="jaxpar/config/checks/islands.py",
        old="if islands.fragments > config.model.layers:",
        new="if False:",
        caught_by=("tests/config/test_islands.py::test_islands_that_cannot_train_are_refused[fragments]",),
    ),
    Fault(
        name="contributions_of_an_earlier_round_counted",
        description="An outer gradient of an earlier round is counted in this one.",
        file="jaxpar/training/island_jobs/exchange.py",
        old="if contribution.round != index:",
        new="if contribution.round > index:",
        caught_by=(f"{ROUNDS}::test_a_contribution_of_an_earlier_round_is_refused",),
    ),
    Fault(
        name="contributions_of_another_outer_state_counted",
        description="An outer gradient that began with another outer state is counted.",
        file="jaxpar/training/island_jobs/exchange.py",
        old="if contribution.base != base:",
        new="if not contribution.base:",
        caught_by=(f"{ROUNDS}::test_a_contribution_of_another_state_or_model_is_refused[state]",),
    ),
    Fault(
        name="damaged_contributions_counted",
        description="Only the size of an outer gradient's file is compared, and not its digest.",
        file="jaxpar/training/island_jobs/array_files.py",
        old=" or file_entries(path.parent, [path.name], flush=False)[path.name] != entry:",
        new=":",
        caught_by=(f"{ROUNDS}::test_a_damaged_contribution_is_refused_and_the_others_go_on[a bit]",),
    ),
    Fault(
        name="contributions_replaced_after_their_round_counted",
        description="A contribution that was replaced after its round was closed makes the next outer state.",
        file="jaxpar/training/island_jobs/contributions.py",
        old="None if one.digest == digest else",
        new="None if one.digest or digest else",
        caught_by=(f"{ROUNDS}::test_a_contribution_that_was_replaced_after_its_round_was_closed_is_not_used",),
    ),
    Fault(
        name="outer_gradients_summed_in_any_order",
        description="Each island adds up the outer gradients from the local one on.",
        file="jaxpar/training/island_jobs/contributions.py",
        old="files for island in sorted(accepted)]",
        new="files for island in sorted(accepted, key=lambda name: name != self._exchange.island)]",
        caught_by=(f"{ROUNDS}::test_all_islands_have_the_same_bits_whatever_their_mesh_and_order",),
    ),
    Fault(
        name="a_slow_island_goes_on_from_a_state_of_its_own",
        description="An island whose round was closed without it continues with that round's outcome, not the newest.",
        file="jaxpar/training/island_jobs/island.py",
        old="if run_on_process_0(self.exchange.newest) > following:",
        new="if not closed.accepted:",
        caught_by=(f"{ROUNDS}::test_a_slow_island_is_refused_by_its_round_and_goes_on_from_the_newest_state",),
    ),
    Fault(
        name="every_step_pays_for_an_exchange",
        description="A predicted step of islands has the message of a fragment, though it is sent in one of several.",
        file="jaxpar/planner/search/islands.py",
        old="return self.config.fragments / self.config.every",
        new="return 1.0",
        caught_by=(f"{PLANNED}::test_a_device_sends_its_weights_once_in_a_period[None-2]",),
    ),
    Fault(
        name="a_message_hidden_by_the_update",
        description="A delayed message is taken to run beside the update, too.",
        file="jaxpar/planner/search/islands.py",
        old="min(step.seconds - apart, MOST_HIDDEN)",
        new="min(step.seconds, MOST_HIDDEN)",
        caught_by=(f"{PLANNED}::test_a_message_is_hidden_by_no_more_than_forward_and_backward",),
    ),
    Fault(
        name="a_delayed_message_starts_late",
        description="A delayed message starts as late as XLA's estimate of the usual network allows.",
        file="jaxpar/training/residency/island_message.py",
        old="default=apart",
        new="default=exchange",
        caught_by=(
            "tests/compiler/steps/test_islands.py::test_a_message_over_a_slow_link_runs_beside_forward_and_backward[4]",
        ),
    ),
    Fault(
        name="islands_are_planned_on_all_hosts",
        description="The layout of an island is searched on the hosts of all islands.",
        file="jaxpar/planner/search/islands.py",
        old="hosts=each // part",
        new="hosts=cluster.hosts",
        caught_by=(f"{PLANNED}::test_islands_have_whole_hosts_or_even_parts_of_one",),
    ),
)

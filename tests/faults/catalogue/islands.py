"""Faults of islands and their outer optimizer."""

from tests.faults.fault import Fault

STEPS = "tests/training/islands/test_steps.py"
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
        description="An island goes on with the global weights alone, whatever islands.mix.",
        file="jaxpar/optim/outer.py",
        old="shared + mix * (local - shared)",
        new="shared + 0 * mix * (local - shared)",
        caught_by=("tests/optim/test_outer.py::test_an_island_goes_on_with_its_share_of_both_weights",),
    ),
    Fault(
        name="outer_gradients_are_summed",
        description="The outer gradient is the sum over islands, not the mean.",
        file="jaxpar/training/residency/islands.py",
        old="sum_over_islands(gradient) / islands",
        new="sum_over_islands(gradient)",
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
        name="islands_wait_longer_for_the_global_weights",
        description="Islands go on with the global weights a step after islands.delay.",
        file="jaxpar/training/residency/islands.py",
        old="island._replace(master=self._if_sent(done - delay,",
        new="island._replace(master=self._if_sent(done - delay - 1,",
        caught_by=(
            f"{STEPS}::test_a_fragment_is_sent_beside_a_step_and_reaches_the_islands_after_the_delay[4-1-3-0.0]",
        ),
    ),
    Fault(
        name="outer_messages_in_float32",
        description="Outer gradients travel as they are, whatever islands.wire.",
        file="jaxpar/training/residency/islands.py",
        old="    if wire is None:",
        new="    if True:",
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
        return state._replace(optimizer={**state.optimizer, ISLAND_WEIGHTS: self._of_each_island(state.master)})
''',
        caught_by=(
            "tests/training/islands/test_runs.py::test_a_run_goes_on_with_the_same_bits_though_a_message_was_due",
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
)

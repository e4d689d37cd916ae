"""Faults of what is kept, and of how that is chosen."""

from tests.faults.fault import Fault

PARETO = "tests/memory/test_pareto.py"
ESTIMATE = "tests/layout/memory/test_estimate.py"
MOMENTS = "tests/optim/test_moments.py"
DISK_ROWS = (
    "tests/training/residency/test_disk_rows.py::test_files_are_saved_and_restored_bit_for_bit_by_any_other_layout"
)

MEMORY = (
    Fault("host_bytes_for_nothing", "The frontier drops a choice for one that takes more host memory.",
        "jaxpar/memory/pareto.py",
        old="if not (frontier[before_block : len(indices), 1:] <= block[i, 1:]).all(axis=1).any():",
        new="if not (frontier[before_block : len(indices), 1:2] <= block[i, 1:2]).all(axis=1).any():",
        caught_by=(f"{PARETO}::test_the_frontier_of_a_layer_is_what_trying_everything_leaves",)),
    Fault("half_a_log_sum_exp", "Attention's log-sum-exp is counted in 16 bits.", "jaxpar/memory/layer_shape.py",
        old="width = lambda one: FLOAT32_BYTES if one.float32 else self.item_bytes",
        new="width = lambda one: self.item_bytes",
        caught_by=(
            "tests/memory/test_closed_forms.py::test_a_form_is_the_sum_of_what_its_preset_saves[none-grouped]",)),
    Fault("a_weight_counted_twice", "A weight's bytes are counted twice in the estimate of memory.",
        "jaxpar/layout/memory/weights.py",
        old="weights = tuple(weights)",
        new="weights = (*(own := tuple(weights)), own[0])",
        caught_by=(f"{ESTIMATE}::test_each_weight_and_its_state_count_once[ZeRO-3, two microbatches]",)),
    Fault("small_second_moments_vanish", "An 8-bit second moment far below its block's largest becomes zero.",
        "jaxpar/optim/moments.py",
        old="jnp.where(moment > 0, jnp.maximum(index, 1), 0)",
        new="jnp.where(moment > 0, index, 0)",
        caught_by=(f"{MOMENTS}::test_a_second_moment_never_becomes_zero_and_a_block_of_zeros_stays_zero",)),
    Fault("moments_rounded_to_the_nearest", "8-bit moments are rounded to the nearest code, so small changes are lost.",
        "jaxpar/optim/moments.py",
        old="relative - below > _threshold(step) * (above - below)",
        new="relative - below > 0.5 * (above - below)",
        caught_by=(f"{MOMENTS}::test_a_second_moment_follows_gradients_that_become_small[0.999-form2]",)),
    Fault("layers_restored_from_the_next", "Each layer on disk is restored with what was saved of the next one.",
        "jaxpar/training/residency/saved_state.py",
        old="read((slice(saved_row, saved_row + count), *region[1:]))",
        new="read((slice((n := min(saved_row + 1, self.shape[0] - count)), n + count), *region[1:]))",
        caught_by=(f"{DISK_ROWS}[100-two chunks a rank, uneven]",)),
)  # fmt: skip

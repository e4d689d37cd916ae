"""Faults of plans that are written and given to runs."""

from tests.faults.fault import Fault

PLAN = (
    Fault("stale_plan_version_accepted", "A plan.json of another version is read.", "jaxpar/config/plan.py",
        old="if type(version) is not int or version != PLAN_VERSION:",
        new="if type(version) is not int or version < 1:",
        caught_by=("tests/layout/test_plan_file.py::test_another_version_is_refused[next]",)),
    Fault("small_matmuls_not_merged",
        "Matmuls are merged only where none of a layer fills the GPU, not where one does not.",
        "jaxpar/layout/compiler_choices.py",
        old="if min(jax.tree.leaves(shares)) >= FILLED",
        new="if max(jax.tree.leaves(shares)) >= FILLED",
        caught_by=(
            "tests/layout/test_merging.py::test_products_that_leave_a_part_idle_are_merged_as_xla_does[a100-80:1x8-asked1]",
        )),
    Fault("the_given_plan_is_derived_again", "A run makes its plan from the configuration though one is given.",
        "jaxpar/training/run/setup.py",
        old="self._planned(plan, devices)",
        new="self._planned(None, devices)",
        caught_by=("tests/layout/test_given_plan.py::test_a_plan_of_another_machine_gives_the_same_bits",)),
    Fault("no_state_stays_though_it_fits", "Under memory.optimizer_offload: host a plan leaves no state on the device.",
        "jaxpar/layout/resident_state.py",
        old="        if size <= left:",
        new="        if size < 0:",
        caught_by=("tests/layout/test_resident_state.py::test_as_much_stays_as_fits[53.0]",)),
    Fault("resident_weights_of_the_plan_ignored", "A step keeps no state on the device where its plan does.",
        "jaxpar/layout/step_layout.py",
        old="state if name in self.plan.resident_weights else offloaded(state)",
        new="offloaded(state)",
        caught_by=("tests/layout/test_resident_state.py::test_all_of_it_stays_where_all_of_it_fits",)),
    Fault("configurations_of_processes_not_compared",
        "Processes with other learning rates train together: no plan and no program has them.",
        "jaxpar/training/run/agreed.py",
        old="values = dict(_leaves(settings))",
        new="values = {}",
        caught_by=("tests/training/run/test_agreed.py::test_another_configuration_on_one_host_is_named",)),
    Fault("programs_of_processes_not_compared", "A process runs another program of a step than process 0.",
        "jaxpar/checkpoint/same_program.py",
        old='        raise UserError(\n            f"process {jax.process_index()} on',
        new='        str(\n            f"process {jax.process_index()} on',
        caught_by=(
            "tests/checkpoint/test_same_program.py"
            "::test_a_program_is_compared_with_that_of_process_0_once_and_before_its_call",)),
    Fault("programs_of_scores_not_compared", "A process scores tokens with another program than process 0.",
        "jaxpar/generation/scorer.py",
        old='compared(jax.jit(scored), "scores")',
        new="jax.jit(scored)",
        caught_by=(
            "tests/checkpoint/test_same_program.py"
            "::test_programs_of_scores_and_of_smaller_batches_are_compared[scores]",), found="trace"),
    Fault("processes_verify_files_of_others",
        "A restart divides files by size alone, so that a host reads its own a second time from the disk.",
        "jaxpar/checkpoint/manifest.py",
        old="if {*written} != {*range(count)} or",
        new="if files or",
        caught_by=(
            "tests/checkpoint/test_manifest.py::test_each_process_verifies_what_it_wrote_where_as_many_restore",)),
)  # fmt: skip

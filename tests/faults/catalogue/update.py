"""Faults of the update, and of what keeps a run alive and honest."""

from tests.faults.fault import Fault

REFERENCE = "tests/training/parity/test_reference.py::test_loss_and_gradients_of_options_equal_float64"
OFFLOADED = "tests/training/residency/test_optimizer_offload.py::test_the_state_is_the_same_bits_as_on_the_device"

UPDATE = (
    Fault(
        name="gradients_rounded",
        description="Each microbatch's gradients are rounded to bfloat16 before they are added up.",
        file="jaxpar/mesh/materialize.py",
        old="grad = vary(grad.astype(placed.dtype(dtype)))",
        new="grad = vary(grad.astype(jnp.bfloat16).astype(placed.dtype(dtype)))",
        caught_by=(f"{REFERENCE}[window_biases]",),
    ),
    Fault(
        name="embedding_gradients_summed_in_half_precision",
        description="The gradients of an embedding's row are added up in compute dtype.",
        file="jaxpar/model/embedding.py",
        old="cotangent = cotangent.astype(jnp.float32)",
        new='cotangent = jnp.zeros(shape, cotangent.dtype).at[rows].add(cotangent, mode="drop"); '
        "rows = jnp.arange(shape[0]); cotangent = cotangent.astype(jnp.float32)",
        caught_by=(
            "tests/model/test_embedding.py::test_thousands_of_equal_tokens_all_count_in_bfloat16[5-split vocabulary]",
        ),
    ),
    Fault(
        name="gradient_of_an_input_without_earlier_microbatches",
        description="The gradient of a matrix of the input is that of the last microbatch.",
        file="jaxpar/model/embedding.py",
        old="added = jax.tree.map(jnp.add, accumulators, new)",
        new="added = new",
        caught_by=("tests/extending/test_vectors.py::test_loss_and_gradients_of_vectors_equal_float64[fsdp]",),
    ),
    Fault(
        name="loss_scale_left_in",
        description="Under float16 gradients are not divided by the loss scale.",
        file="jaxpar/training/residency/on_device.py",
        old="jax.tree.map(lambda g: g / scale, to_optimizer(accumulated, self.layout.placements))",
        new="to_optimizer(accumulated, self.layout.placements)",
        caught_by=(
            "tests/training/parity/test_float16.py::test_scaled_loss_and_gradients_equal_float64_to_half_precision",
        ),
    ),
    Fault(
        name="step_without_numbers_applied",
        description="A step whose gradients are not finite is applied.",
        file="jaxpar/training/residency/weight_update.py",
        old="jnp.where(facts.applies, a, b)",
        new="a",
        caught_by=("tests/runtime/test_loss_scale.py::test_a_step_that_overflows_is_skipped_until_the_scale_fits",),
    ),
    Fault(
        name="empty_step_applied",
        description="A step without a token that the loss counts is applied.",
        file="jaxpar/training/step/forward_backward.py",
        old="applies, idle = finite & ~empty, finite & empty",
        new="applies, idle = finite, finite & empty",
        caught_by=(
            "tests/training/run/test_empty_steps.py::"
            "test_an_empty_step_has_no_loss_changes_nothing_and_is_counted_also_after_a_restart",
        ),
    ),
    Fault(
        name="piece_not_written_back",
        description="The last piece of each weight in host memory stays as it was.",
        file="jaxpar/memory/streaming.py",
        old="    state = write_rows(state, new, first)",
        new="    state = write_rows(state, piece[0], first)",
        caught_by=(f"{OFFLOADED}[adamw, one device]",),
    ),
    Fault(
        name="moments_of_another_piece",
        description="Of a weight on disk, every piece is updated with the moments of the first.",
        file="jaxpar/training/residency/on_disk.py",
        old="    return jax.tree.map(lambda leaf: leaf.read(piece.first, piece.rows), weight)",
        new="    read = lambda first: jax.tree.map(lambda leaf: leaf.read(first, piece.rows), weight)\n"
        "    return read(piece.first)._replace(optimizer=read(0).optimizer)",
        caught_by=(f"{OFFLOADED}[adamw, one device]",),
    ),
    Fault(
        name="clipping_by_the_local_norm",
        description="Gradients are clipped by the norm of one rank's shards.",
        file="jaxpar/optim/norm.py",
        old="flat = reduce_sum(jnp.concatenate([value.ravel() for value in values.values()]), sorted(axes))",
        new="flat = jax.lax.pmean(jnp.concatenate([value.ravel() for value in values.values()]), tuple(sorted(axes)))",
        caught_by=("tests/optim/test_norm.py::test_norm_of_the_tree_is_the_dense_norm",),
    ),
    Fault(
        name="weight_decay_on_norms",
        description="Norms and biases are pulled towards zero like matrices.",
        file="jaxpar/optim/optimizer.py",
        old="decay = arguments.weight_decay if self.spec.decay else 0.0",
        new="decay = arguments.weight_decay",
        caught_by=("tests/optim/test_optimizer.py::test_decay_moves_only_the_weights_that_ask_for_it",),
    ),
    Fault(
        name="a_seed_in_the_program",
        description="The masks of dropout are of a constant seed: another one is another program.",
        file="jaxpar/training/step/forward_backward.py",
        old="SEED: seed, ",
        new="SEED: jnp.uint32(self.layout.arguments.seed), ",
        caught_by=("tests/training/step/test_arguments.py::test_other_numbers_are_the_same_program[adamw]",),
    ),
    Fault(
        name="adafactor_means_of_a_shard",
        description="Adafactor's means are those of a rank's shards.",
        file="jaxpar/optim/adafactor.py",
        old="return total / prod(spec.unpadded_shape[dim] for dim in dims)",
        new="return total / prod(x.shape[dim] for dim in dims)",
        caught_by=("tests/optim/test_adafactor.py::test_four_steps_equal_optax_layer_by_layer[absolute-both]",),
    ),
    Fault(
        name="gram_matrices_on_every_rank",
        description="A dim of state that is split over several dims of the weight lies on every rank.",
        file="jaxpar/optim/rule.py",
        old="return sum((axes_of_dim(weight, dim) for dim in dims), ()) or None",
        new="return None",
        caught_by=(
            "tests/extending/test_soap.py::"
            "test_gram_matrices_are_split_over_all_ranks_and_counted_by_planner_and_estimate",
        ),
    ),
    Fault(
        name="own_sleep_blamed_on_others",
        description="A process that was stopped itself reports the others as silent.",
        file="jaxpar/distributed/watch.py",
        old="self._leave_out_pause(now - woke)",
        new="woke = now",
        caught_by=(
            "tests/distributed/test_watch.py::"
            "test_a_process_that_was_stopped_itself_does_not_hold_that_time_against_the_others",
        ),
    ),
    Fault(
        name="those_who_wait_are_blamed",
        description="The processes that wait are named, and not the one that they wait for.",
        file="jaxpar/distributed/verdicts.py",
        old="return [sign for sign in signs if sign.mark.count == first]",
        new="return [sign for sign in signs if sign.age_s > sign.mark.limit_s]",
        caught_by=(
            "tests/distributed/test_verdicts.py::test_the_one_behind_is_named_also_when_it_has_more_time_itself",
        ),
    ),
    Fault(
        name="savers_are_hurried",
        description="A process that still saves is allowed only the time of a step.",
        file="jaxpar/distributed/verdicts.py",
        old="return mark.waiting_limit_s if pausing and mark.waiting_limit_s is not None else mark.limit_s",
        new="return mark.limit_s",
        caught_by=("tests/distributed/test_verdicts.py::test_those_in_a_step_wait_longer_for_one_that_saves",),
    ),
    Fault(
        name="coordinators_end_passed_on",
        description="JAX's client learns at once that process 0 is gone, and aborts.",
        file="jaxpar/distributed/rendezvous/relay.py",
        old="while _read(client):  # The service is gone, and the client must not notice.",
        new="while False:",
        caught_by=(
            "tests/distributed/rendezvous/test_relay.py::test_bytes_pass_in_both_directions_and_the_end_of_the_service_does_not",
        ),
    ),
    Fault(
        name="launcher_over_what_is_written",
        description="JAX's variables win over what the user wrote.",
        file="jaxpar/distributed/job.py",
        old="_variable(environment, key) if value is None else value",
        new="_variable(environment, key) or value",
        caught_by=("tests/distributed/test_job.py::test_what_is_written_makes_a_job",),
    ),
    Fault(
        name="left_out_batches_come_back",
        description="A continued run uses the batches again that a rollback skipped.",
        file="jaxpar/training/run/run.py",
        old='self.left_out = tuple(facts.get("left_out", ()))',
        new="self.left_out = ()",
        caught_by=(
            "tests/training/monitor/test_anomaly_monitor.py::"
            "test_a_resumed_run_leaves_out_the_same_batches_and_judges_by_the_same_losses",
        ),
    ),
    Fault(
        name="large_jobs_compared_at_every_log",
        description="Process 0 of a job of thousands reads a note of each of them at every log.",
        file="jaxpar/training/monitor/anomaly_monitor.py",
        old="if self._logs < logs_between(jax.process_count()):",
        new="if self._logs < 1:",
        caught_by=(
            "tests/training/monitor/test_anomaly_monitor.py::test_large_jobs_compare_their_processes_every_few_logs",
        ),
    ),
    Fault(
        name="average_not_evaluated",
        description="The weights are evaluated where the moving average of them is asked for.",
        file="jaxpar/training/run/run.py",
        old="self.state.optimizer[AVERAGE] if average else self.state.master",
        new="self.state.master",
        caught_by=("tests/training/run/test_average.py::test_evaluation_uses_the_average_where_it_is_asked_to",),
    ),
    Fault(
        name="damage_not_noticed",
        description="A checkpoint's files are not compared with the digests in its manifest.",
        file="jaxpar/checkpoint/manifest.py",
        old="if entries[name].digest != files[name].digest:",
        new="if len(entries[name].digest) != len(files[name].digest):",
        caught_by=(
            "tests/checkpoint/test_damage.py::test_a_flipped_bit_in_any_file_is_found_and_the_checkpoint_before_is_used",
        ),
    ),
)

"""Faults that somebody could make, each one replacement in the code, and the tests that must notice it."""

from __future__ import annotations

from tests.faults.fault import Fault, context, parity, pipeline_parity

REFERENCE = "tests/training/test_reference.py::test_loss_and_gradients_of_options_equal_float64"
MASKS = "tests/pallas_kernels/test_masks.py"
LOOP = "tests/model/test_layer_loop.py"
TILED_LOSS = "tests/model/test_tiled_loss.py::test_loss_and_gradients_equal_the_whole_in_float64"
TILED_MLP = "tests/model/test_tiled_mlp.py::test_output_and_gradients_equal_the_whole_in_float64"

COMMUNICATION = (
    Fault(
        name="dropped_sum_of_partial_outputs",
        says="Tensor ranks keep their own partial sum of a block's output instead of the sum over ranks.",
        file="jaxpar/mesh/collectives.py",
        old='return lax.psum_scatter(x, "tensor", scatter_dimension=1, tiled=True)',
        new='part = x.shape[1] // lax.axis_size("tensor"); '
        'return lax.dynamic_slice_in_dim(x, lax.axis_index("tensor") * part, part, 1)',
        caught_by=(parity(tensor=2, fsdp=4),),
    ),
    Fault(
        name="dropped_sum_of_gradient_shards",
        says="Under ZeRO-2 and 3 a rank keeps its shard of its own gradient, and drops what the others found.",
        file="jaxpar/mesh/collectives.py",
        old="return lax.psum_scatter(x, tuple(axes), scatter_dimension=dim, tiled=True)",
        new="part = x.shape[dim] // lax.axis_size(tuple(axes)); "
        "return lax.dynamic_slice_in_dim(x, lax.axis_index(tuple(axes)) * part, part, dim)",
        caught_by=(parity(zero=3, fsdp=2),),
    ),
    Fault(
        name="dropped_sum_over_replicas",
        says="Gradients are not summed over replicas.",
        file="jaxpar/mesh/materialize.py",
        old="rest = tuple(axis for axis in unreduced_axes(compute) if axis not in done)",
        new='rest = tuple(axis for axis in unreduced_axes(compute) if axis not in (*done, "replica"))',
        caught_by=(parity(replica=2, fsdp=2),),
        found="trace",
    ),
    Fault(
        name="doubled_sum_of_gradient_shards",
        says="Gradients that were summed and scattered are summed once more over the same axes.",
        file="jaxpar/mesh/materialize.py",
        old="rest = tuple(axis for axis in unreduced_axes(compute) if axis not in done)",
        new="rest = unreduced_axes(compute)",
        caught_by=(parity(zero=1, fsdp=4),),
    ),
    Fault(
        name="doubled_loss",
        says="The reported loss is summed over the ranks that split the vocabulary too, which all hold the same one.",
        file="jaxpar/training/step.py",
        old="return reduce_sum(nll, [axis for axis in AXES if axis not in alike])",
        new='return reduce_sum(jax.lax.pcast(nll, alike, to="varying"), AXES)',
        caught_by=(parity(tensor=2, fsdp=4), pipeline_parity(pipe_ends="shared")),
    ),
    Fault(
        name="norm_gradient_reduced_twice",
        says="The gradients of norms are summed over the tensor axis in the backward, and again at the step's end.",
        file="jaxpar/mesh/materialize.py",
        old="return scatter_gradient(grad, added[1], added[0] - unstacked) if added else grad",
        new="grad = vary(reduce_sum(grad, ('tensor',))) if grad.ndim == 1 else grad; "
        "return scatter_gradient(grad, added[1], added[0] - unstacked) if added else grad",
        caught_by=(parity(tensor=2, fsdp=4),),
    ),
    Fault(
        name="output_bias_on_every_rank",
        says="The MLP's output bias is added to each tensor rank's partial sum, so it counts once per rank.",
        file="jaxpar/model/layer.py",
        old="return scatter_sequence(self.mlp.project_out(x))",
        new="return scatter_sequence(self.mlp.add_bias(self.mlp.project_out(x)))",
        caught_by=(parity(tensor=2, family="gpt2"),),
    ),
)

LOSS = (
    Fault(
        name="labels_shifted_after_the_split",
        says="Labels are made from a rank's own tokens, so the last token of each part gets a wrong one.",
        file="jaxpar/model/decoder.py",
        old='x, table, batch["labels"], batch["mask"], self.model, self.vocab_axes, self.loss_tiles',
        new='x, table, jnp.roll(batch["tokens"], -1, axis=1), batch["mask"], self.model, self.vocab_axes, '
        "self.loss_tiles",
        caught_by=(parity(context=2, packed=True),),
    ),
    Fault(
        name="mean_of_the_ranks_means",
        says="Gradients are divided by a rank's own count of unmasked tokens, not by the global one.",
        file="jaxpar/training/step.py",
        old="seed = scale / jnp.maximum(count, 1.0)",
        new='seed = scale / jnp.maximum(batch["mask"].sum() * jax.lax.axis_size(TOKEN_AXES), 1.0)',
        caught_by=(f"{REFERENCE}[window_biases]",),
    ),
    Fault(
        name="padded_vocabulary_counts",
        says="Columns that only pad the vocabulary take part in the softmax.",
        file="jaxpar/model/embedding.py",
        old="return jnp.where(columns < model.vocab, logits, -jnp.inf)",
        new="return logits",
        caught_by=(f"{REFERENCE}[window_biases]",),
    ),
    Fault(
        name="z_loss_without_gradient",
        says="The z-loss is added to the objective, but its gradient is left out.",
        file="jaxpar/model/loss.py",
        old="return (of_nll + of_lse)[..., None] * probability",
        new="return of_nll[..., None] * probability",
        caught_by=(f"{REFERENCE}[capped_logits]",),
    ),
    Fault(
        name="labels_of_another_ranks_tokens",
        says="In tiles of a split sequence the labels are not put in the order in which the ranks' tokens are joined.",
        file="jaxpar/model/tiled_loss.py",
        old="x.reshape(batch, ranks, seq // ranks).transpose(1, 0, 2).reshape(ranks, -1)",
        new="x.reshape(ranks, -1)",
        caught_by=(f"{TILED_LOSS}[tensor 4-3-all]",),
    ),
    Fault(
        name="remainder_counted_again",
        says="The last tile of the loss is filled with copies of the last token, which count.",
        file="jaxpar/model/tiles.py",
        old="x = jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1))",
        new='x = jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1), mode="edge")',
        caught_by=(f"{TILED_LOSS}[one device-7-all]",),
    ),
    Fault(
        name="tiles_gradients_summed_in_half_precision",
        says="The head's gradients of all tiles are added up in compute dtype.",
        file="jaxpar/model/tiled_loss.py",
        old="d_table = d_table + new",
        new="d_table = (d_table + new).astype(x.dtype).astype(jnp.float32)",
        caught_by=(
            "tests/model/test_tiled_loss.py::test_in_bfloat16_the_gradients_of_many_tiles_are_added_up_in_float32",
        ),
    ),
    Fault(
        name="last_tile_alone_counts",
        says="Of the feed-forward in tiles the weights have the gradient of the last tile instead of the sum.",
        file="jaxpar/model/tiles.py",
        old="lambda a, b: a + b.astype(jnp.float32)",
        new="lambda a, b: b.astype(jnp.float32)",
        caught_by=(f"{TILED_MLP}[tensor 4-5-swiglu-False]",),
    ),
    Fault(
        name="microbatch_dropped",
        says="The last of several microbatches is never run.",
        file="jaxpar/pipeline/schedules/one_forward_one_backward.py",
        old="return (tuple(Action(kind, m) for m in range(microbatches) for kind in (F, B)),)",
        new="return (tuple(Action(kind, m) for m in range(max(1, microbatches - 1)) for kind in (F, B)),)",
        caught_by=(parity(microbatches=2, fsdp=4),),
    ),
    Fault(
        name="microbatch_counted_twice",
        says="The first of several microbatches runs in the place of the second.",
        file="jaxpar/pipeline/program.py",
        old='row = {"counts": 1, "microbatch": action.microbatch, "chunk": chunk}',
        new='row = {"counts": 1, "microbatch": max(0, action.microbatch - 1), "chunk": chunk}',
        caught_by=(
            "tests/pipeline/test_executor.py::"
            "test_a_batch_in_four_microbatches_has_the_loss_and_gradients_of_the_whole",
        ),
    ),
)

TOKENS = (
    Fault(
        name="window_off_by_one",
        says="A window of n tokens sees n + 1.",
        file="pallas_kernels/masks.py",
        old="kept &= q - kv < mask.window",
        new="kept &= q - kv <= mask.window",
        caught_by=(f"{MASKS}::test_a_window_of_one_sees_the_token_itself_alone",),
    ),
    Fault(
        name="segments_ignored_by_the_mask",
        says="Attention reaches from one packed document into another.",
        file="pallas_kernels/masks.py",
        old="kept &= (q_segment == kv_segment) & (kv_segment != 0)",
        new="kept &= (q_segment != 0) & (kv_segment != 0)",
        caught_by=(
            f"{MASKS}::test_allowed_keeps_exactly_the_pairs_that_the_definition_keeps"
            "[Mask(causal=True, window=None, segmented=True, prefix=False)]",
        ),
    ),
    Fault(
        name="segments_ignored_by_the_step",
        says="The step asks for attention without segments although the data is packed.",
        file="jaxpar/training/attend.py",
        old="segmented=config.data.packed",
        new="segmented=False",
        caught_by=(f"{REFERENCE}[window_biases]",),
    ),
    Fault(
        name="positions_from_the_ranks_first_token",
        says="Rotary positions start at 0 on every context rank.",
        file="jaxpar/model/decoder.py",
        old='rotary_tables(batch["positions"],',
        new='rotary_tables(batch["positions"] - batch["positions"][:, :1],',
        caught_by=(parity(context=2, family="qwen3"),),
    ),
    Fault(
        name="dropout_by_local_row",
        says="Dropout is keyed by the row's number on its rank instead of its global example.",
        file="jaxpar/model/dropout.py",
        old="rows = jax.vmap(jax.random.fold_in, (None, 0))(key, examples)",
        new="rows = jax.vmap(jax.random.fold_in, (None, 0))(key, examples - examples[0])",
        caught_by=(parity(dropout=0.1, fsdp=4),),
    ),
    Fault(
        name="same_dropout_in_every_layer",
        says="The layers drop the same elements, because the place in the model does not enter the key.",
        file="jaxpar/model/layer.py",
        old="h = self._drop(self.attention.add_bias(h), 2 * index + 1, tokens, train)",
        new="h = self._drop(self.attention.add_bias(h), 0 * index + 1, tokens, train)",
        caught_by=(
            "tests/model/test_dropout_sites.py::test_each_place_drops_at_the_rate_and_independently_of_all_others",
        ),
    ),
    Fault(
        name="wrong_key_value_head",
        says="With fewer key and value heads than tensor ranks, a rank takes the head of other query heads.",
        file="jaxpar/model/attention.py",
        old='lax.axis_index("tensor") * self.kv_heads // ranks, 1, axis)',
        new='lax.axis_index("tensor") % self.kv_heads, 1, axis)',
        caught_by=(parity(tensor=4, kv_heads=2),),
    ),
    Fault(
        name="tokens_of_other_ranks_looked_up",
        says="A rank looks up tokens whose embeddings other ranks hold; negative rows count from the table's end.",
        file="jaxpar/model/embedding.py",
        old="jnp.where((local >= 0) & (local < rows), local, rows)",
        new="local",
        caught_by=(parity(tensor=2, fsdp=4),),
    ),
    Fault(
        name="hosts_read_the_same_rows",
        says="Every host numbers its rows from 0, so all of them load the first rows of the batch.",
        file="jaxpar/data/loader.py",
        old="examples = [step * batch_size + int(row) for row in rows]",
        new="examples = [step * batch_size + place for place, _ in enumerate(rows)]",
        caught_by=("tests/data/test_loader.py::test_hosts_assemble_the_batch_that_one_host_makes[packed_rows]",),
    ),
)

LAYERS = (
    Fault(
        name="same_layer_prefetched_again",
        says="The layer loop gathers the weights of the layer it is running instead of the next one's.",
        file="jaxpar/model/layer_loop.py",
        old="ahead = fetch(following)",
        new="ahead = fetch(layer)",
        caught_by=(parity(zero=3, fsdp=2),),
    ),
    Fault(
        name="residuals_of_another_layer",
        says="The backward of every layer reads the activations that the first layer saved.",
        file="jaxpar/model/layer_loop.py",
        old="x, residuals = in_order(at(stash, slot, layer, instead=brought))",
        new="x, residuals = at(stash.inputs, slot, layer), in_order(at(stash.residuals, slot, 0))",
        caught_by=(f"{LOOP}::test_the_loop_equals_a_plain_one[3-3-keep_all]",),
    ),
    Fault(
        name="next_layer_gathered_late",
        says="The next layer's weights are gathered when it begins, so that its matmuls wait for the network.",
        file="jaxpar/model/layer_loop.py",
        old="if not jax.tree.leaves(jax.eval_shape(fetch, order[0])):",
        new="if True:",
        caught_by=(f"{LOOP}::test_no_matmul_of_a_layer_waits_for_a_gather_of_its_own_iteration",),
    ),
    Fault(
        name="gathered_weights_kept",
        says="Weights are scaled inside the layer, so every layer's gathered copy lives on until the backward.",
        file="jaxpar/model/layer_loop.py",
        old="return self.apply(merge(diff, fixed), x,",
        new="return self.apply(jax.tree.map(lambda a: a * jnp.sqrt(a[:1] * 0 + 1), merge(diff, fixed)), x,",
        caught_by=(f"{LOOP}::test_no_gathered_layer_is_kept_for_the_backward[none]",),
    ),
    Fault(
        name="ring_merged_without_its_maximum",
        says="Blocks of a ring are merged by the exponentials of their log-sum-exps, not relative to the greater one.",
        file="jaxpar/attention/ring.py",
        old="base = jnp.where(peak == -jnp.inf, 0.0, peak)  # -inf - -inf would be NaN",
        new="base = jnp.zeros_like(peak)",
        caught_by=("tests/attention/test_context.py::test_the_merge_of_nothing_with_nothing_is_nothing",),
    ),
    Fault(
        name="stale_block_in_the_ring",
        says="A rank of a ring attends again over the block that it sends on, instead of the one that came.",
        file="jaxpar/attention/ring.py",
        old="return (following, merge(found, attend(kv, step))), None",
        new="return (kv, merge(found, attend(kv, step))), None",
        caught_by=(context(strategy="ring", ranks=8),),
    ),
    Fault(
        name="mask_off_by_one_rank",
        says="The keys that came round a ring are masked as those of the rank after the one that they came from.",
        file="jaxpar/attention/ring.py",
        old="source = (self.rank - step) % self.size",
        new="source = (self.rank - step + 1) % self.size",
        caught_by=(context(strategy="ring", ranks=4),),
    ),
    Fault(
        name="gradients_of_keys_stay_behind",
        says="Gradients of keys and values stay where the last rank of a ring added to them.",
        file="jaxpar/attention/ring.py",
        old="home = ring.shift(travelling, 1 - ring.steps, wrap=True)",
        new="home = travelling",
        caught_by=(context(strategy="ring", ranks=2),),
    ),
    Fault(
        name="tokens_not_in_the_ranks_order",
        says="Rows are permuted for the context ranks, but the labels stay where they were.",
        file="jaxpar/training/batches.py",
        old="return mine if per_row else mine[..., self.order[index[2]]]",
        new='return mine if per_row else mine[..., index[2] if name == "labels" else self.order[index[2]]]',
        caught_by=(parity(context=2, context_strategy="ring", context_order="auto"),),
    ),
    Fault(
        name="softcap_without_derivative",
        says="Attention's backward forgets the derivative of the scores' soft-cap.",
        file="pallas_kernels/attention/reference.py",
        old="ds = ds * (1.0 - jnp.square(scores / settings.softcap))",
        new="ds = ds * 1.0",
        caught_by=(
            "tests/pallas_kernels/test_attention.py::test_output_lse_and_gradients_equal_dense_attention[softcap]",
        ),
    ),
)

UPDATE = (
    Fault(
        name="gradients_rounded",
        says="Each microbatch's gradients are rounded to bfloat16 before they are added up.",
        file="jaxpar/mesh/materialize.py",
        old="grad = vary(grad.astype(dtype))",
        new="grad = vary(grad.astype(jnp.bfloat16).astype(dtype))",
        caught_by=(f"{REFERENCE}[window_biases]",),
    ),
    Fault(
        name="embedding_gradients_summed_in_half_precision",
        says="The gradients of all tokens that share a row of the embedding are added up in the compute dtype.",
        file="jaxpar/model/embedding.py",
        old="cotangent = cotangent.astype(jnp.float32)",
        new='cotangent = jnp.zeros(table.shape, cotangent.dtype).at[rows].add(cotangent, mode="drop"); '
        "rows = jnp.arange(table.shape[0]); cotangent = cotangent.astype(jnp.float32)",
        caught_by=(
            "tests/model/test_embedding.py::test_thousands_of_equal_tokens_all_count_in_bfloat16[5-split vocabulary]",
        ),
    ),
    Fault(
        name="loss_scale_left_in",
        says="Under float16 gradients are not divided by the loss scale.",
        file="jaxpar/training/step.py",
        old="jax.tree.map(lambda g: g / scale, to_optimizer(gradients, self.placements))",
        new="to_optimizer(gradients, self.placements)",
        caught_by=("tests/training/test_float16.py::test_scaled_loss_and_gradients_equal_float64_to_half_precision",),
    ),
    Fault(
        name="step_without_numbers_applied",
        says="A step whose gradients are not finite is applied.",
        file="jaxpar/training/step.py",
        old="master=keep(master, state.master),",
        new="master=master,",
        caught_by=("tests/precision/test_loss_scale.py::test_a_step_that_overflows_is_skipped_until_the_scale_fits",),
    ),
    Fault(
        name="clipping_by_the_local_norm",
        says="The norm that gradients are clipped by is that of one rank's shards (on average), not of the whole.",
        file="jaxpar/optim/norm.py",
        old="flat = reduce_sum(jnp.concatenate([value.ravel() for value in values.values()]), sorted(axes))",
        new="flat = jax.lax.pmean(jnp.concatenate([value.ravel() for value in values.values()]), tuple(sorted(axes)))",
        caught_by=("tests/optim/test_norm.py::test_norm_of_the_tree_is_the_dense_norm",),
    ),
    Fault(
        name="weight_decay_on_norms",
        says="Norms and biases are pulled towards zero like matrices.",
        file="jaxpar/optim/optimizer.py",
        old="decays = [config.weight_decay if spec.decay else 0.0 for spec in described]",
        new="decays = [config.weight_decay for spec in described]",
        caught_by=("tests/optim/test_optimizer.py::test_decay_moves_only_the_weights_that_ask_for_it",),
    ),
    Fault(
        name="adafactor_means_of_a_shard",
        says="Adafactor's row and column means are those of a rank's shards, added up over the ranks that share a row.",
        file="jaxpar/optim/adafactor.py",
        old="return total / prod(spec.shape[dim] for dim in dims)",
        new="return total / prod(x.shape[dim] for dim in dims)",
        caught_by=("tests/optim/test_adafactor.py::test_four_steps_equal_optax_layer_by_layer[absolute-both]",),
    ),
    Fault(
        name="own_sleep_blamed_on_others",
        says="A process that was stopped for a while takes the others for silent when it goes on.",
        file="jaxpar/mesh/watch.py",
        old="self._forgive(now - woke)",
        new="woke = now",
        caught_by=(
            "tests/mesh/test_watch.py::"
            "test_a_process_that_was_stopped_itself_does_not_hold_that_time_against_the_others",
        ),
    ),
    Fault(
        name="those_who_wait_are_blamed",
        says="Of processes that do not get on, those whose time is up are named, and not the one they wait for.",
        file="jaxpar/mesh/verdicts.py",
        old="return [sign for sign in signs if sign.mark.count == first]",
        new="return [sign for sign in signs if sign.age_s > sign.mark.limit_s]",
        caught_by=("tests/mesh/test_verdicts.py::test_the_one_behind_is_named_also_when_it_has_more_time_itself",),
    ),
    Fault(
        name="savers_are_hurried",
        says="A process that still saves has no longer than a step while the others wait for it in the next one.",
        file="jaxpar/mesh/verdicts.py",
        old="return mark.waiting_limit_s if pausing and mark.waiting_limit_s is not None else mark.limit_s",
        new="return mark.limit_s",
        caught_by=("tests/mesh/test_verdicts.py::test_those_in_a_step_wait_longer_for_one_that_saves",),
    ),
    Fault(
        name="coordinators_end_passed_on",
        says="JAX's client hears at once that process 0 is gone, and aborts before anybody can say who died.",
        file="jaxpar/mesh/relay.py",
        old="while _read(client):  # The service is gone, and the client need not know.",
        new="while False:",
        caught_by=("tests/mesh/test_relay.py::test_bytes_pass_in_both_directions_and_the_end_of_the_service_does_not",),
    ),
    Fault(
        name="launcher_over_what_is_written",
        says="JAX's variables win over what the user wrote.",
        file="jaxpar/mesh/job.py",
        old="_variable(environment, key) if value is None else value",
        new="_variable(environment, key) or value",
        caught_by=("tests/mesh/test_job.py::test_what_is_written_makes_a_job",),
    ),
    Fault(
        name="left_out_batches_come_back",
        says="A run that is continued after a rollback uses the batches again that the rollback left out.",
        file="jaxpar/training/loop.py",
        old='self.trainer.left_out = tuple(facts["left_out"])',
        new="self.trainer.left_out = ()",
        caught_by=(
            "tests/training/test_lookout.py::"
            "test_a_resumed_run_leaves_out_the_same_batches_and_judges_by_the_same_losses",
        ),
    ),
    Fault(
        name="average_not_evaluated",
        says="The weights are evaluated where the moving average of them is asked for.",
        file="jaxpar/training/trainer.py",
        old="return self.state.optimizer.average if self.config.evaluation.ema else self.state.master",
        new="return self.state.master",
        caught_by=("tests/training/test_average.py::test_evaluation_uses_the_average_where_it_is_asked_to",),
    ),
    Fault(
        name="damage_not_noticed",
        says="A checkpoint's files are not compared with the digests in its manifest.",
        file="jaxpar/checkpoint/manifest.py",
        old="if digests[name] != files[name].digest:",
        new="if len(digests[name]) != len(files[name].digest):",
        caught_by=(
            "tests/checkpoint/test_damage.py::test_a_flipped_bit_in_any_file_is_found_and_the_checkpoint_before_is_used",
        ),
    ),
)

PREPARED = (
    Fault(
        name="tokens_not_checked",
        says="A block of tokens is not compared with its sum before it is used.",
        file="jaxpar/data/sharded_tokens.py",
        old="if block_sum(content) != self._sums[block].tobytes():",
        new="if len(block_sum(content)) != len(self._sums[block].tobytes()):",
        caught_by=("tests/data/test_sharded_tokens.py::test_a_damaged_block_is_not_given_out_and_the_others_are",),
    ),
    Fault(
        name="sources_begin_anew",
        says="When the weights of a mixture change, each source begins at its first row again.",
        file="jaxpar/data/mixture.py",
        old="used[identity] = used.get(identity, 0) + now[identity] - before[identity]",
        new="used[identity] = 0",
        caught_by=("tests/data/test_mixture.py::test_when_weights_change_each_source_goes_on_where_it_was",),
    ),
    Fault(
        name="first_line_of_a_unit_lost",
        says="A line that begins where a unit of work begins belongs to neither unit.",
        file="jaxpar/data/prepare/documents.py",
        old="content.seek(first - 1)\n            place = first - 1 +",
        new="content.seek(first)\n            place = first +",
        caught_by=(
            "tests/data/prepare/test_documents.py::test_units_of_any_size_hold_each_document_once_in_order[a.jsonl]",
        ),
    ),
)

EXECUTOR = "tests/pipeline/test_executor.py::test_gradients_and_reports_are_summed_over_the_microbatches"

PIPELINE = (
    Fault(
        name="slot_reused_too_early",
        says="A slot of the stash is given away in the tick in which it is read last; that tick's forward comes first.",
        file="jaxpar/pipeline/slots.py",
        old="while busy and busy[0][0] < lifetimes[name].first:",
        new="while busy and busy[0][0] <= lifetimes[name].first:",
        caught_by=(f"{EXECUTOR}[interleaved, uneven]",),
    ),
    Fault(
        name="transfer_a_tick_late",
        says="What a rank sends is put away a tick after it came, when something else comes.",
        file="jaxpar/pipeline/executor.py",
        old="tables = {name: table[ticks] for name, table in self.program.rows.items()}",
        new='late = lambda name, table: jnp.roll(table, 1, axis=0) if name[:2] in ("y_", "g_") else table; '
        "tables = {name: late(name, table)[ticks] for name, table in self.program.rows.items()}",
        caught_by=(f"{EXECUTOR}[gpipe]",),
    ),
    Fault(
        name="weight_gradient_dropped",
        says="The matrices' gradients of the first microbatch are computed and not added.",
        file="jaxpar/pipeline/program.py",
        old='row = {"counts": 1, "chunk": chunk, "kept": slot("kept")}',
        new='row = {"counts": int(action.microbatch > 0), "chunk": chunk, "kept": slot("kept")}',
        caught_by=(f"{EXECUTOR}[zb-h1, recomputing]",),
    ),
    Fault(
        name="every_rank_feeds_the_embedding",
        says="The gradient of a chunk's input goes to the embedding on every pipeline rank, not on the first alone.",
        file="jaxpar/pipeline/executor.py",
        old='into_embedding = jnp.where(counts & (row["b_first"] == 1), dx, 0)',
        new="into_embedding = jnp.where(counts, dx, 0)",
        caught_by=(f"{EXECUTOR}[gpipe]",),
    ),
    Fault(
        name="every_rank_counts_its_loss",
        says="Each pipeline rank counts the loss of what it has in hand, not the last one alone.",
        file="jaxpar/pipeline/executor.py",
        old="mine = True if self._shares_ends else counts",
        new="mine = True",
        caught_by=(pipeline_parity(pipe_ends="last", pipe_ticks="uniform"),),
    ),
    Fault(
        name="labels_of_another_microbatch",
        says="Where all ranks share the head, the last rank's output meets the labels of what the first rank has.",
        file="jaxpar/pipeline/executor.py",
        old='"last": self.program.last_rank}',
        new='"last": self.program.schedule.rank_of[0]}',
        caught_by=(pipeline_parity(pipe_ends="shared", schedule=("gpipe", "zb-h1"), model="gpt2"),),
    ),
    Fault(
        name="layers_numbered_by_row",
        says="Layers are numbered by where they lie in the stack, so that they drop other elements in a pipeline.",
        file="jaxpar/mesh/layer_order.py",
        old="numbers = jnp.asarray(self.numbers, jnp.int32)",
        new="numbers = jnp.arange(self.rows).reshape(self.numbers.shape)",
        caught_by=(f"{EXECUTOR}[breadth-first]",),
    ),
    Fault(
        name="repeated_forward_overwrites",
        says="A rank that has nothing to do, and no slot free, repeats a forward on another input than it had.",
        file="jaxpar/pipeline/executor.py",
        old='x = jnp.where(row["f_source"] == STASHED, self.stages.loop.input_of(stash, row["f_slot"]), x)',
        new="pass",
        caught_by=(f"{EXECUTOR}[gpipe]",),
    ),
)

FAULTS = (*COMMUNICATION, *LOSS, *TOKENS, *LAYERS, *UPDATE, *PREPARED, *PIPELINE)

"""Faults of the loss: what counts, and what is split."""

from tests.faults.fault import Fault, parity

REFERENCE = "tests/training/parity/test_reference.py::test_loss_and_gradients_of_options_equal_float64"
TILED_LOSS = "tests/model/test_tiled_loss.py::test_loss_and_gradients_equal_the_whole_in_float64"
TILED_MLP = "tests/model/test_tiled_mlp.py::test_output_and_gradients_equal_the_whole_in_float64"

PREFERENCES = "tests/training/parity/test_preferences.py::test_loss_reports_and_gradients_equal_float64"
BIDIRECTIONAL = "tests/training/parity/test_bidirectional.py::test_masked_loss_and_gradients_equal_float64"
CONTRASTIVE = "tests/training/parity/test_contrastive.py::test_loss_term_and_gradients_equal_float64"
MASKED = "tests/data/test_masked.py"

LOSS = (
    Fault(
        name="labels_shifted_after_the_split",
        description="Labels are made from a rank's own tokens, so the last one of each part is wrong.",
        file="jaxpar/objectives/tokens.py",
        old='head.cross_entropy(batch["labels"], ',
        new='head.cross_entropy(__import__("jax").numpy.roll(batch["tokens"], -1, axis=1), ',
        caught_by=(parity(context=2, packed=True),),
    ),
    Fault(
        name="mean_of_the_ranks_means",
        description="Gradients are divided by a rank's own count of unmasked tokens.",
        file="jaxpar/training/step/forward_backward.py",
        old="loss_seed = scale / jnp.maximum(count, 1.0)",
        new='import jax; loss_seed = scale / jnp.maximum(batch["mask"].sum() * jax.lax.axis_size(TOKEN_AXES), 1.0)',
        caught_by=(f"{REFERENCE}[window_biases]",),
    ),
    Fault(
        name="padded_vocabulary_counts",
        description="Columns that only pad the vocabulary take part in the softmax.",
        file="jaxpar/model/head.py",
        old="return jnp.where(columns < model.vocab, logits, -jnp.inf)",
        new="return logits",
        caught_by=(f"{REFERENCE}[window_biases]",),
    ),
    Fault(
        name="z_loss_without_gradient",
        description="The z-loss is added to the objective, but its gradient is left out.",
        file="jaxpar/model/loss.py",
        old="return (of_nll + of_lse)[..., None] * probability",
        new="return of_nll[..., None] * probability",
        caught_by=(f"{REFERENCE}[capped_logits]",),
    ),
    Fault(
        name="labels_of_another_ranks_tokens",
        description="In tiles of a split sequence, labels are in another order than the ranks' tokens.",
        file="jaxpar/model/tiled_loss.py",
        old="x.reshape(batch, ranks, seq // ranks, *label).swapaxes(0, 1).reshape(ranks, -1, *label)",
        new="x.reshape(ranks, -1, *label)",
        caught_by=(f"{TILED_LOSS}[tensor 4-3-all]",),
    ),
    Fault(
        name="remainder_counted_again",
        description="Copies of the last token that fill the last tile of the loss count.",
        file="jaxpar/layers/tiles.py",
        old="x = jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1))",
        new='x = jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1), mode="edge")',
        caught_by=(f"{TILED_LOSS}[one device-7-all]",),
    ),
    Fault(
        name="rejected_answers_made_likelier",
        description="The gradient of a loss of pairs has the sign of chosen answers for rejected ones too.",
        file="jaxpar/objectives/pairs.py",
        old="slope.reshape(rows, 2 * room)",
        new="jnp.abs(slope).reshape(rows, 2 * room)",
        caught_by=(f"{PREFERENCES}[dpo-split]",),
    ),
    Fault(
        name="unrelated_answers_pull",
        description="The mean reward of unrelated answers has a derivative in a loss of marked answers.",
        file="jaxpar/objectives/kto.py",
        old="z = lax.stop_gradient(jnp.maximum(unrelated, 0.0))[:, None]",
        new="z = jnp.maximum(unrelated, 0.0)[:, None]",
        caught_by=(f"{PREFERENCES}[kto-split]",),
    ),
    Fault(
        name="odds_without_their_denominator",
        description="The odds ratio is one of probabilities.",
        file="jaxpar/objectives/orpo.py",
        old="odds = bounded - jnp.log(-jnp.expm1(bounded))",
        new="odds = bounded",
        caught_by=(f"{PREFERENCES}[orpo-split]",),
    ),
    Fault(
        name="longer_answers_weigh_more",
        description="Rewards without a reference are sums over tokens.",
        file="jaxpar/objectives/pairs.py",
        old='return likely / jnp.maximum(sums["targets"], 1)',
        new="return likely",
        caught_by=(f"{PREFERENCES}[simpo-split]",),
    ),
    Fault(
        name="other_tokens_have_no_class",
        description="A teacher draws the probabilities of its likeliest tokens alone.",
        file="jaxpar/objectives/distill.py",
        old="jnp.exp(of_rest) * (of_rest - rest(model))",
        new="0 * of_rest",
        caught_by=("tests/training/parity/test_distill.py::test_loss_divergence_and_gradients_equal_float64[split]",),
    ),
    Fault(
        name="equal_labels_of_a_token_count_once",
        description="Of several labels of a token the last one has a gradient.",
        file="jaxpar/model/loss.py",
        old="return of_logits.at[row, token, column].add(",
        new="return of_logits.at[row, token, column].max(",
        caught_by=("tests/training/parity/test_distill.py::test_loss_divergence_and_gradients_equal_float64[split]",),
    ),
    Fault(
        name="keys_of_later_ranks_are_left_out",
        description="In a ring of contiguous parts the last rank's keys do not go on to the first, though all see all.",
        file="jaxpar/attention/ring.py",
        old='wraps=layout.order != "contiguous" or not settings.mask.causal',
        new='wraps=layout.order != "contiguous"',
        caught_by=(f"{BIDIRECTIONAL}[ring]",),
    ),
    Fault(
        name="window_looks_ahead_without_a_limit",
        description="A window of a bidirectional mask limits the look back alone.",
        file="pallas_kernels/masks.py",
        old="pairs &= kv_index - q_index < mask.window",
        new="pairs &= True",
        caught_by=(f"{BIDIRECTIONAL}[split]",),
    ),
    Fault(
        name="first_layer_adds_to_embeddings_without_their_norm",
        description="The first layer's attention is added to the residual stream as it was before the norm.",
        file="jaxpar/layers/layer.py",
        old='"stream_mixer": mixers}',
        new='"stream_mixer": 0}',
        caught_by=("tests/model/test_masked_goldens.py::test_the_masked_loss_is_that_of_transformers[modernbert]",),
    ),
    Fault(
        name="head_bias_is_left_out",
        description="The column of ones that a bias of the logits stands behind is zero.",
        file="jaxpar/layers/norm.py",
        old="x.dtype).at[..., 0].set(1)",
        new="x.dtype)",
        caught_by=("tests/model/test_masked_goldens.py::test_the_masked_loss_is_that_of_transformers[modernbert]",),
    ),
    Fault(
        name="every_masked_token_is_hidden",
        description="Drawn tokens all become the mask token.",
        file="jaxpar/data/masked.py",
        old="replaced = np.where(fate < MASKED, ",
        new="replaced = np.where(fate < 2, ",
        caught_by=(f"{MASKED}::test_a_share_of_the_tokens_is_drawn_of_which_four_fifths_are_hidden",),
    ),
    Fault(
        name="tails_of_a_head_are_its_negatives",
        description="A positive of a head is among the negatives of the head's other triples.",
        file="jaxpar/objectives/contrastive.py",
        old=" & ~linked & ",
        new=" & ~jnp.eye(triples.shape[1], dtype=bool) & ",
        caught_by=(f"{CONTRASTIVE}[split]",),
    ),
    Fault(
        name="weights_of_relations_cancel",
        description="A row's term is divided by the sum of the weights of its relations.",
        file="jaxpar/objectives/contrastive.py",
        old="jnp.maximum((weights > 0).sum(1), 1)",
        new="jnp.maximum(weights.sum(1), 1e-12)",
        caught_by=(
            "tests/training/parity/test_contrastive.py::test_weights_of_one_relation_and_hop_do_not_cancel",
            f"{CONTRASTIVE}[split]",
        ),
    ),
    Fault(
        name="spans_are_drawn_token_by_token",
        description="Each token of a span has a draw of its own.",
        file="jaxpar/data/masked.py",
        old="np.where(together, draws[first][which], draws)",
        new="draws",
        caught_by=(f"{MASKED}::test_spans_are_those_of_the_lines_and_are_drawn_whole_at_the_rate_of_their_kind",),
    ),
    Fault(
        name="tiles_gradients_summed_in_half_precision",
        description="The head's gradients of all tiles are added up in compute dtype.",
        file="jaxpar/model/tiled_loss.py",
        old="else d_table + new",
        new="else (d_table + new).astype(x.dtype).astype(jnp.float32)",
        caught_by=(
            "tests/model/test_tiled_loss.py::test_in_bfloat16_the_gradients_of_many_tiles_are_added_up_in_float32",
        ),
    ),
    Fault(
        name="last_tile_alone_counts",
        description="The weights of a feed-forward in tiles have the gradient of the last tile alone.",
        file="jaxpar/layers/tiles.py",
        old="lambda a, b: a + b.astype(jnp.float32)",
        new="lambda a, b: b.astype(jnp.float32)",
        caught_by=(f"{TILED_MLP}[tensor 4-5-swiglu-False]",),
    ),
    Fault(
        name="microbatch_dropped",
        description="The last of several microbatches is never run.",
        file="jaxpar/pipeline/schedules/one_forward_one_backward.py",
        old="return (tuple(Action(kind, m) for m in range(microbatches) for kind in (F, B)),)",
        new="return (tuple(Action(kind, m) for m in range(max(1, microbatches - 1)) for kind in (F, B)),)",
        caught_by=(parity(microbatches=2, fsdp=4),),
    ),
    Fault(
        name="microbatch_counted_twice",
        description="The first of several microbatches runs in the place of the second.",
        file="jaxpar/pipeline/execution/make_program.py",
        old='row = {"counts": 1, "microbatch": action.microbatch, "chunk": chunk}',
        new='row = {"counts": 1, "microbatch": max(0, action.microbatch - 1), "chunk": chunk}',
        caught_by=(
            "tests/training/step/test_microbatches.py::"
            "test_a_batch_in_four_microbatches_has_the_loss_and_gradients_of_the_whole",
        ),
    ),
)

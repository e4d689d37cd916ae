"""Faults of batches, masks and positions: which token is where, and what it sees."""

from tests.faults.fault import Fault, parity

REFERENCE = "tests/training/parity/test_reference.py::test_loss_and_gradients_of_options_equal_float64"
MASKS = "tests/pallas_kernels/test_masks.py"

TOKENS = (
    Fault("window_off_by_one", "A window of n tokens sees n + 1.", "pallas_kernels/masks.py",
        old="pairs &= q_index - kv_index < mask.window",
        new="pairs &= q_index - kv_index <= mask.window",
        caught_by=(
            f"{MASKS}::test_allowed_keeps_exactly_the_pairs_that_the_definition_keeps"
            "[Mask(causal=True, window=1, segmented=False, prefix=False)]",)),
    Fault("segments_ignored_by_the_mask", "Attention reaches from one packed document into another.",
        "pallas_kernels/masks.py",
        old="pairs &= (q_segment == kv_segment) & (kv_segment != 0)",
        new="pairs &= (q_segment != 0) & (kv_segment != 0)",
        caught_by=(
            f"{MASKS}::test_allowed_keeps_exactly_the_pairs_that_the_definition_keeps"
            "[Mask(causal=True, window=None, segmented=True, prefix=False)]",)),
    Fault("segments_ignored_by_the_step", "The step asks for attention without segments although the data is packed.",
        "jaxpar/layout/stages.py",
        old="segmented=config.data.packed",
        new="segmented=False",
        caught_by=(f"{REFERENCE}[window_biases]",)),
    Fault("positions_from_the_ranks_first_token", "Rotary positions start at 0 on every context rank.",
        "jaxpar/model/decoder.py",
        old='rotary_tables(batch["positions"], angles, magnitude)',
        new='rotary_tables(batch["positions"] - batch["positions"][:, :1], angles, magnitude)',
        caught_by=(parity(context=2, family="qwen3"),)),
    Fault("dropout_by_local_row", "Dropout is keyed by the row's number on its rank.", "jaxpar/layers/dropout.py",
        old="rows = jax.vmap(jax.random.fold_in, (None, 0))(key, examples)",
        new="rows = jax.vmap(jax.random.fold_in, (None, 0))(key, examples - examples[0])",
        caught_by=(parity(dropout=0.1, fsdp=4),)),
    Fault("same_dropout_in_every_layer", "All layers drop the same elements.", "jaxpar/layers/layer.py",
        old="self._drop(h, len(self.names) * context.index + index + 1, context.tokens, context.train)",
        new="self._drop(h, 0 * context.index + index + 1, context.tokens, context.train)",
        caught_by=(
            "tests/model/test_dropout_sites.py::test_each_place_drops_at_the_rate_and_independently_of_all_others",)),
    Fault("wrong_key_value_head",
        "With fewer key and value heads than tensor ranks, a rank uses the head of other query heads.",
        "jaxpar/layers/attention.py",
        old='lax.axis_index("tensor") * self.kv_heads // ranks, 1, axis)',
        new='lax.axis_index("tensor") % self.kv_heads, 1, axis)',
        caught_by=(parity(tensor=4, kv_heads=2),)),
    Fault("projection_normalised_by_rank",
        "A norm over all query or key heads divides by the mean square of a tensor rank's own.",
        "jaxpar/layers/norm.py",
        old="squares = sum_over_heads(jnp.stack(",
        new='squares = lax.axis_size("tensor") * (jnp.stack(',
        caught_by=(parity(tensor=2, family="olmo2"),)),
    Fault("tokens_of_other_ranks_looked_up", "A rank looks up tokens whose embeddings other ranks hold.",
        "jaxpar/model/embedding.py",
        old="jnp.where((local >= 0) & (local < size), local, size)",
        new="local",
        caught_by=(parity(tensor=2, fsdp=4),)),
    Fault("hosts_read_the_same_rows", "Every host loads the first rows of the batch.", "jaxpar/data/loader.py",
        old="examples = [first + int(row) for row in rows]",
        new="examples = [first + place for place, _ in enumerate(rows)]",
        caught_by=("tests/data/test_loader.py::test_hosts_assemble_the_batch_that_one_host_makes[packed_rows]",)),
)  # fmt: skip

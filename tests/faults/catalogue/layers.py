"""Faults of the layer loop and of attention."""

from tests.faults.fault import Fault, context, parity

LOOP = "tests/model/loop/test_layer_loop.py"

LAYERS = (
    Fault(
        name="same_layer_prefetched_again",
        description="The layer loop gathers the weights of the running layer instead of the next one's.",
        file="jaxpar/model/loop/walk.py",
        old="(site, following), state[1])",
        new="(site, jax.tree.leaves(rows)[0].reshape(-1)[0]), state[1])",
        caught_by=(f"{LOOP}::test_the_loop_equals_a_plain_one[3-3-keep_all]",),
    ),
    Fault(
        name="layers_counted_from_the_chunks_first",
        description="Layers that keep other activations write them to rows counted from the chunk's first layer.",
        file="jaxpar/model/loop/layer_loop.py",
        old="stashes[stack.name, first], (saved.slot, row - first)",
        new="stashes[stack.name, first], (saved.slot, row)",
        caught_by=(f"{LOOP}::test_layers_that_keep_different_things_are_a_loop_each[3]",),
    ),
    Fault(
        name="unwritten_entries_read",
        description="Stacks of what layers keep begin unfilled with pipeline ranks too, which read what nobody wrote.",
        file="jaxpar/model/loop/layer_loop.py",
        old='fills = lax.axis_size("pipe") == 1 and not self.order.padded',
        new="fills = True",
        caught_by=("tests/model/loop/test_stash.py::test_pipelines_begin_with_zeros",),
    ),
    Fault(
        name="next_layer_gathered_late",
        description="The next layer's weights are gathered only when it begins.",
        file="jaxpar/model/loop/walk.py",
        old="if not part.fetches and (after is None or not after[0].fetches):",
        new="if True:",
        caught_by=(f"{LOOP}::test_no_matmul_of_a_layer_waits_for_a_gather_of_its_own_iteration",),
    ),
    Fault(
        name="ring_merged_without_its_maximum",
        description="Blocks of a ring are merged without subtracting the greater log-sum-exp.",
        file="jaxpar/attention/ring.py",
        old="base = jnp.where(peak == -jnp.inf, 0.0, peak)  # -inf - -inf would be NaN",
        new="base = jnp.zeros_like(peak)",
        caught_by=("tests/attention/test_context.py::test_the_merge_of_nothing_with_nothing_is_nothing",),
    ),
    Fault(
        name="mask_off_by_one_rank",
        description="Keys of a ring are masked as those of the rank after their own.",
        file="jaxpar/attention/ring.py",
        old="source = (self.rank - step) % self.size",
        new="source = (self.rank - step + 1) % self.size",
        caught_by=(context(strategy="ring", ranks=4),),
    ),
    Fault(
        name="gradients_of_keys_stay_behind",
        description="Gradients of keys and values stay on the last rank of a ring.",
        file="jaxpar/attention/ring.py",
        old="returned = ring.shift(travelling, 1 - ring.steps, wrap=True)",
        new="returned = travelling",
        caught_by=(context(strategy="ring", ranks=2),),
    ),
    Fault(
        name="tokens_not_in_the_ranks_order",
        description="Rows are permuted for the context ranks, but the labels stay where they were.",
        file="jaxpar/runtime/batch.py",
        old="mine.take(order[index[token]], axis=token)",
        new='mine.take((np.arange(len(order)) if field.name == "labels" else order)[index[token]], axis=token)',
        caught_by=(parity(context=2, context_strategy="ring", context_order="striped"),),
    ),
    Fault(
        name="softcap_without_derivative",
        description="Attention's backward forgets the derivative of the scores' soft-cap.",
        file="pallas_kernels/attention/reference.py",
        old="ds = ds * (1.0 - jnp.square(scores / settings.softcap))",
        new="ds = ds * 1.0",
        caught_by=(
            "tests/pallas_kernels/attention/test_attention.py::test_output_lse_and_gradients_equal_dense_attention[softcap]",
        ),
    ),
)

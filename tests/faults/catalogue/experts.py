"""Faults of experts: what is multiplied, summed and counted where tokens are exchanged."""

from tests.faults.fault import Fault

FLOAT64 = "tests/training/parity/test_experts.py::test_loss_and_gradients_equal_float64"
OWN_FIRST = (
    "tests/training/parity/test_experts.py::test_loss_and_gradients_equal_one_device"
    "[gpt_oss-expert4-replica2-hierarchical-2-own-first-1-gemm_last]"
)

EXPERTS = (
    Fault("tokens_of_experts_counted_in_bfloat16",
        "Counts that balance a router are rounded, and do not grow above 256, as gradients in bfloat16.",
        "jaxpar/mesh/placements.py",
        old="in_float32 = spec.balance_rate is not None",
        new="in_float32 = False",
        caught_by=(
            "tests/training/parity/test_experts.py"
            "::test_tokens_of_experts_are_counted_exactly_where_gradients_accumulate_in_bfloat16[accumulation]",)),
    Fault("results_combined_in_the_order_they_were_computed",
        "Rows are sent back in the order of the experts, and not in that in which they came.",
        "jaxpar/layers/experts/rounds.py",
        old="places.sizes), places.take, places.back)",
        new="places.sizes), places.take, jnp.arange(len(places.back))[:, None])",
        caught_by=(f"{FLOAT64}[top_k_softmax]",)),
    Fault("balance_loss_counted_per_rank", "Every rank reports the balance loss of the whole microbatch as its share.",
        "jaxpar/layers/experts/routing.py",
        old="jnp.sum(slopes[name] * (part - lax.stop_gradient(part)))",
        new='jnp.sum(slopes[name] * (part - lax.stop_gradient(part))) * lax.axis_size("expert")',
        caught_by=(f"{FLOAT64}[top_k_softmax]",)),
    Fault("expert_gradients_summed_over_expert",
        "The gradients of different experts are added up over the expert axis.", "jaxpar/mesh/materialize.py",
        old="rest = tuple(axis for axis in unreduced_axes(compute) if axis not in done)",
        new="own = unreduced_axes(compute); "
        'rest = tuple(axis for axis in (*own, *({"expert"} - set(own))) if axis not in done)',
        caught_by=(f"{FLOAT64}[top_k_softmax]",), found="trace"),
    Fault("bias_updated_from_local_counts", "The biases of a router count the tokens of one expert rank alone.",
        "jaxpar/layers/experts/feed_forward.py",
        old="total += jnp.sum((bias - lax.stop_gradient(bias)) * local_sums.counts)",
        new="total += jnp.sum((bias - lax.stop_gradient(bias)) * jnp.where("
        'lax.axis_index("expert") == 0, local_sums.counts, 0 * local_sums.counts))',
        caught_by=(f"{FLOAT64}[sigmoid]",)),
    Fault("own_rows_sent_as_well",
        "What a rank computes of its own tokens while the first slice is sent is in that slice, too.",
        "jaxpar/layers/experts/rows.py",
        old="tokens=others(window.tokens), back=back, expert=others(window.expert)",
        new="tokens=window.tokens, expert=window.expert",
        caught_by=(OWN_FIRST,)),
)  # fmt: skip

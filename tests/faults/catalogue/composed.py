"""Faults of features that are right alone and wrong together, as they were reported of another system: Megatron-LM
#7452, #5916 and #7165."""

from tests.faults.catalogue.experts import FLOAT64
from tests.faults.fault import Fault, parity

NORM = "tests/optim/test_norm.py"

COMPOSED = (
    Fault("full_logits_taken_for_a_part_of_them",
        "Every rank has the logits of the whole vocabulary, and sums over them as if they were its part.",
        "jaxpar/model/loss.py",
        old="    total = reduce_sum(jnp.exp(logits - top[..., None]).sum(axis=-1), axes)",
        new="    full = vary(gather_weight(vary(logits, axes), axes, logits.ndim - 1), axes)\n"
        "    total = reduce_sum(jnp.exp(full - top[..., None]).sum(axis=-1), axes)",
        caught_by=(parity(tensor=2, fsdp=4),)),
    Fault("a_ranks_sums_overwritten_by_those_of_all",
        "The sums of a rank's tokens are those of all ranks, and the losses of routers have their gradient "
        "once for each rank.", "jaxpar/layers/experts/feed_forward.py",
        old="        packed, unpack = ravel_pytree(local_sums)\n"
        "        global_sums, ranks = unpack(reduce_sum(lax.stop_gradient(packed), STREAM_AXES)), "
        "lax.axis_size(STREAM_AXES)\n",
        new="        local_sums = jax.tree.map(lambda leaf: reduce_sum(leaf, STREAM_AXES), local_sums)\n"
        "        global_sums, ranks = lax.stop_gradient(local_sums), lax.axis_size(STREAM_AXES)\n",
        caught_by=(f"{FLOAT64}[top_k_softmax]",), found="trace"),
    Fault("norm_without_sinks_of_other_ranks",
        "Vectors that tensor ranks split are in the norm of the gradient with the first rank's part alone.",
        "jaxpar/optim/norm.py",
        old="        value = value if weight.balance_rate is None else jnp.zeros_like(value)\n",
        new="        value = value if weight.balance_rate is None else jnp.zeros_like(value)\n"
        '        if "tensor" in mesh_axes_of(spec) and leaf.ndim == 1 + is_stacked(weight):\n'
        '            value = jnp.where(jax.lax.axis_index("tensor") == 0, value, 0.0)\n',
        caught_by=(f"{NORM}::test_squares_of_a_weight_are_summed_over_what_splits_it[stack_tensor]",)),
    Fault("norm_of_a_mixers_output_not_summed_over_its_heads",
        "The gradient of the norm that all heads of a mixer share is that of a tensor rank's heads.",
        "jaxpar/mesh/materialize.py",
        old="rest = tuple(axis for axis in unreduced_axes(compute) if axis not in done)",
        new="rest = tuple(axis for axis in unreduced_axes(compute) "
        'if axis not in done and not (axis == "tensor" and grad.ndim == 2))',
        caught_by=(
            "tests/layers/linear_attention/test_mixers.py::test_loss_and_gradients_equal_a_recurrence_in_float64"
            "[gated_deltanet-context and tensor]",), found="trace"),
)  # fmt: skip

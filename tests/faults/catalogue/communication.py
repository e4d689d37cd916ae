"""Faults of what ranks send and sum."""

from tests.faults.fault import Fault, parity, pipeline_parity

RING = "tests/mesh/test_collective_matmul.py::test_a_ring_has_the_numbers_of_the_plain_collectives[4-2]"
OVERLAP = "tests/training/parity/test_overlap.py::test_loss_and_gradients_equal_one_device"

COMMUNICATION = (
    Fault("gradients_of_other_ranks_rows_added_to_own_ones",
        "Gradients of the rows that other ranks looked up are added to those that this rank looked up.",
        "jaxpar/model/embedding.py",
        old="rows, cotangent = join_ranks(rows, added[1]), scatter_rows(cotangent, added[1])",
        new="rows = jnp.concatenate([rows] * lax.axis_size(added[1])); cotangent = scatter_rows(cotangent, added[1])",
        caught_by=(f"{OVERLAP}[rows of the embedding, ZeRO-3]",)),
    Fault("dropped_sum_of_partial_outputs", "Tensor ranks keep their own partial sum of a block's output.",
        "jaxpar/mesh/collectives.py",
        old='return _scatter(x, ("tensor",), 1, "scatter_sequence")',
        new='part = x.shape[1] // lax.axis_size("tensor"); '
        'return lax.dynamic_slice_in_dim(x, lax.axis_index("tensor") * part, part, 1)',
        caught_by=(parity(tensor=2, fsdp=4),)),
    Fault("dropped_sum_of_gradient_shards", "Under ZeRO-2 and 3 a rank keeps its shard of its own gradient alone.",
        "jaxpar/mesh/collectives.py",
        old="return lax.psum_scatter(x, tuple(axes), scatter_dimension=dim, tiled=True)",
        new="part = x.shape[dim] // lax.axis_size(tuple(axes)); "
        "return lax.dynamic_slice_in_dim(x, lax.axis_index(tuple(axes)) * part, part, dim)",
        caught_by=(parity(zero=3, fsdp=2),)),
    Fault("scale_applied_twice", "What arrives in codes is multiplied by its block's scale twice.",
        "jaxpar/mesh/quantized/blocks.py",
        old="blocks = _blocks(values) * scales[:, :, None].astype(jnp.float32)",
        new="blocks = _blocks(values) * scales[:, :, None].astype(jnp.float32) ** 2",
        caught_by=(
            "tests/mesh/quantized/test_blocks.py::test_an_element_comes_back_within_its_blocks_step[int8-False]",)),
    Fault("stale_hpz", "An hpZ shard is not refreshed from the other nodes: its own shard stands in their place.",
        "jaxpar/mesh/quantized/weight_collectives.py",
        old="parts = _gathered(x, axes, levels.between, transport.weight) if levels.nodes > 1 else x[None]",
        new="parts = jnp.broadcast_to(x[None], (levels.nodes, *x.shape))",
        caught_by=(f"{OVERLAP}[hpZ, accumulation, remat]",)),
    Fault("other_nodes_gradients_dropped", "What the other nodes summed of a quantized gradient is left out.",
        "jaxpar/mesh/quantized/weight_collectives.py",
        old="    if levels.nodes == 1:\n        return x[0, 0]",
        new="    if levels.nodes > 0:\n        return x[0, 0]",
        caught_by=(
            "tests/mesh/quantized/test_weight_collectives.py::test_a_quantized_sum_is_within_its_bound_and_in_float32[int8-4]",)),
    Fault("dropped_sum_over_replicas", "Gradients are not summed over replicas.", "jaxpar/mesh/materialize.py",
        old="rest = tuple(axis for axis in unreduced_axes(compute) if axis not in done)",
        new='rest = tuple(axis for axis in unreduced_axes(compute) if axis not in (*done, "replica"))',
        caught_by=(parity(replica=2, fsdp=2),), found="trace"),
    Fault("weights_of_other_replicas_not_gathered",
        "Where replicas share the state, each has its own part of the new weights in place of the others'.",
        "jaxpar/mesh/materialize.py",
        old="weight = gather_shards(weight, over, dim - unstacked, transport.exact if over == REPLICAS else transport)",
        new="weight = jnp.concatenate([weight] * jax.lax.axis_size(over), dim - unstacked) if over == REPLICAS "
        "else gather_shards(weight, over, dim - unstacked, transport)",
        caught_by=(f"{OVERLAP}[state over replicas, ZeRO-3]",)),
    Fault("doubled_loss", "The reported loss is also summed over the ranks that split the vocabulary.",
        "jaxpar/training/step/forward_backward.py",
        old="return reduce_sum(local, [axis for axis in AXES if axis not in alike])",
        new='import jax; return reduce_sum(jax.lax.pcast(local, alike, to="varying"), AXES)',
        caught_by=(parity(tensor=2, fsdp=4), pipeline_parity(pipe_ends="shared"))),
    Fault("norm_gradient_reduced_twice",
        "The gradients of norms are summed over tensor in the backward, and again at the step's end.",
        "jaxpar/mesh/materialize.py",
        old="return scatter_shards(grad, added[1], added[0] - unstacked, placed.transport) if added else grad",
        new="grad = vary(reduce_sum(grad, ('tensor',))) if grad.ndim == 1 else grad; "
        "return scatter_shards(grad, added[1], added[0] - unstacked, placed.transport) if added else grad",
        caught_by=(parity(tensor=2, fsdp=4),)),
    Fault("output_bias_on_every_rank", "The MLP's output bias counts once for each tensor rank.",
        "jaxpar/layers/feed_forward/base.py",
        old='return self.biased(y, "down"), {}',
        new='return [y := self.biased(y, "down") for _ in range(jax.lax.axis_size("tensor"))][-1], {}',
        caught_by=(parity(tensor=2, family="gpt2"),)),
    Fault("chunk_of_a_ring_skipped", "The last chunk that passes round is put in the place of the one before.",
        "jaxpar/mesh/rings.py",
        old='chunk, where = local[ring.chunk], ring.upstream(lax.axis_size("tensor") - 1 - remaining)',
        new='chunk, where = local[ring.chunk], ring.upstream(lax.axis_size("tensor") - 1 - max(remaining, 1))',
        caught_by=(RING,)),
)  # fmt: skip

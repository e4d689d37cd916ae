"""Faults of FP8 matmuls: scales, and their history."""

from tests.faults.fault import Fault

MATMUL = "tests/precision/test_matmul.py"
HISTORY = "tests/precision/test_history.py"
CODES = "tests/precision/test_quantized_weights.py"
SQUARES = "tests/precision/test_squares.py"
TILES = "tests/precision/test_tiles.py"
GROUPED = "tests/precision/test_grouped.py"
AMAX = "tests/precision/test_amax.py"
BY_TENSOR = "tests/precision/test_grouped_by_tensor.py"

PRECISION = (
    Fault("fp8_scale_of_one_ranks_part", "The largest magnitude of a tensor is that of a rank's own part.",
        "jaxpar/precision/scale.py",
        old="reduce_max(local, split) if split else local",
        new="local",
        caught_by=(f"{MATMUL}::test_a_split_tensor_has_the_largest_magnitude_of_the_whole[axes0-split0]",)),
    Fault("fp8_history_is_a_step_late", "The largest magnitudes of the last step do not count until the next one.",
        "jaxpar/precision/history.py",
        old="largest = history.max(axis=0)",
        new="largest = history[1:].max(axis=0)",
        caught_by=(f"{HISTORY}::test_twenty_steps_equal_a_simulation",)),
    Fault("fp8_gradient_without_its_scale", "The gradient of an output becomes codes of e4m3 as it is.",
        "jaxpar/precision/dense.py",
        old="quantized = _rows(scaling.quantized(dy, scale, recipe.gradient), ",
        new="quantized = _rows(scaling.quantized(dy, jnp.float32(1), E4M3), ",
        caught_by=(f"{MATMUL}::test_each_product_is_within_its_formats_bound[1e-06]",)),
    Fault("fp8_weight_from_its_stored_copy", "A matrix becomes codes after it was rounded to bfloat16.",
        "jaxpar/precision/quantized_weights.py",
        old="quantized = partial(by_rows, matrix.quantized_rows, stack, ",
        new="quantized = partial(by_rows, matrix.quantized_rows, stack.astype(jnp.bfloat16), ",
        caught_by=(
            f"{CODES}::test_codes_come_from_the_master_weights",
            f"{SQUARES}::test_codes_of_squares_come_from_the_master_weights",)),
    Fault("fp8_squares_of_one_ranks_part", "The largest magnitude of a square is that of a rank's own part.",
        "jaxpar/precision/quantized_weights.py",
        old="split(reduce_max(joined, axes))",
        new="split(joined)",
        caught_by=(f"{SQUARES}::test_codes_and_scales_on_ranks_are_those_of_the_whole_matrix[16 rows a rank]",)),
    Fault("fp8_weight_on_the_host_from_its_stored_copy",
        "A matrix in host memory becomes codes after its pieces were rounded to bfloat16.",
        "jaxpar/memory/streaming.py",
        old="return map_row_pieces(function, a, rows_of_piece(a), rows.start, rows.stop, along)",
        new="""rounded = lambda piece, *others: function(piece.astype(jnp.bfloat16), *others)
        return map_row_pieces(rounded, a, rows_of_piece(a), rows.start, rows.stop, along)""",
        caught_by=(
            f"{CODES}::test_a_matrix_that_is_read_in_pieces_has_the_codes_of_the_whole[False-quantized0]",
            f"{CODES}::test_a_matrix_that_is_read_in_pieces_has_the_codes_of_the_whole[True-quantized1]",)),
    Fault("fp8_exact_layers_are_seen", "Layers that are not quantized in a pipeline's chunk enter the history.",
        "jaxpar/precision/matmul.py",
        old="*pullback(tuple(dys)), jax.tree.map(jnp.zeros_like, scaling.zeros)",
        new="*pullback(tuple(dys)), _amax_of_group("
            "x, weights, dys, scaling.zeros, weights_quantized=scaling.weights_quantized)",
        caught_by=(f"{HISTORY}::test_what_a_step_saw_does_not_depend_on_the_layout",)),
    Fault("fp8_tiles_with_scales_of_other_tokens",
        "In the weight's gradient, tiles of inputs have the scales of other tokens.", "jaxpar/precision/dense.py",
        old="        terms, dws = [], []\n",
        new="        inputs, terms, dws = inputs._replace(scales=inputs.scales[::-1]), [], []\n",
        caught_by=(f"{TILES}::test_each_product_is_within_the_bound_of_its_tiles[fp8_block]",)),
    Fault("fp8_experts_with_scales_of_other_experts",
        "In the gradient of rows, codes of an expert's matrix have the scales of another expert.",
        "jaxpar/precision/grouped.py",
        old="matrices = [scaling.matrix(w, n, by_input=False) for n, w in enumerate(weights)]",
        new="""matrices = [scaling.matrix(w, n, by_input=False) for n, w in enumerate(weights)]
        matrices = [codes._replace(scales=codes.scales[::-1]) for codes in matrices]""",
        caught_by=(
            f"{GROUPED}::test_products_of_experts_are_those_of_the_numbers_that_the_codes_stand_for[fp8_block]",)),
    Fault("fp8_experts_whose_tiles_hold_rows_of_others",
        "In the gradient of matrices, tiles of rows begin anywhere, and have rows of two experts.",
        "jaxpar/precision/grouped.py",
        old="    blocks = row_blocks(sizes, rows, tile)\n",
        new="    blocks = row_blocks(sizes, rows, tile, align=8)\n",
        caught_by=(f"{GROUPED}::test_each_expert_begins_a_tile_and_no_row_is_lost[sizes2]",)),
    Fault("fp8_rows_scaled_by_a_part_of_them",
        "Tensor ranks scale the rows of a routed expert each by its own part of them.", "jaxpar/precision/grouped.py",
        old='("tensor",) if split else ()',
        new="()",
        caught_by=(
            f"{BY_TENSOR}::test_scales_of_split_experts_are_those_of_the_whole[True]",
            f"{BY_TENSOR}::test_scales_of_split_experts_are_those_of_the_whole[False]",)),
    Fault("fp8_magnitudes_added_up_over_slices", "What slices and rounds saw of routed experts is added up.",
        "jaxpar/runtime/observed.py",
        old="(reduce(jnp.maximum, observed),)",
        new="(reduce(jnp.add, observed),)",
        caught_by=(f"{AMAX}::test_of_several_uses_the_largest_magnitude_is_observed",)),
)  # fmt: skip

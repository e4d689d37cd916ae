"""Experts in 8 bits, on several layouts: tokens on their way to them, and products of shared and of routed experts."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config import Config
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.mappings.matmul import MatmulOptions
from jaxpar.config.reading.overrides import with_overrides
from jaxpar.config.schema.model import Pattern
from jaxpar.layers.matmul_formats import tensor_names
from jaxpar.layout.choices.matmul import exempt, quantizes_once
from jaxpar.layout.once_quantized import once_quantized_matrices
from tests.nonzero_gradients import nonzero_gradients
from tests.same_bits import apart
from tests.sentences import named
from tests.small_run import SmallRun, small
from tests.training.parity.one_device import assert_near_one_device, changed_by_quantizing, on_one_device

EXPERTS = ExpertsConfig(count=8, per_token=2, router="hash", shared=1, width=32)
"""Routed by a hash, so that no rounding changes the experts of a token."""
MODEL: dict[str, Any] = {"layers": 2, "experts": EXPERTS}

ALL_TO_ALL, ROUNDS = "parallel.experts.exchange=all_to_all", "parallel.experts.capacity=1.0"
OWN_FIRST, SLICES = "parallel.experts.own_rows=first", "parallel.experts.slices=2"
GATHERED = "parallel.experts.exchange=all_gather | memory.remat=full"
LAYOUTS = named("""
    all to all in slices, several rounds: parallel.expert=4 | SLICES | ROUNDS | ALL_TO_ALL
    own rows first, which are not sent but rounded: parallel.expert=4 | SLICES | OWN_FIRST | ROUNDS | ALL_TO_ALL
    all gather, recomputed: parallel.expert=2 | parallel.fsdp=2 | GATHERED
    pipeline, tensor ranks: parallel.pipe=2 | parallel.expert=2 | parallel.tensor=2 | parallel.microbatches=2 |
        ALL_TO_ALL
    """, ALL_TO_ALL=ALL_TO_ALL, ROUNDS=ROUNDS, OWN_FIRST=OWN_FIRST, SLICES=SLICES, GATHERED=GATHERED)  # fmt: skip
SPLIT = named("""
    expert and tensor ranks: parallel.expert=2 | parallel.tensor=2 | parallel.fsdp=2 | ALL_TO_ALL
    several rounds of slices in a pipeline: parallel.pipe=2 | parallel.expert=2 | parallel.microbatches=2 | SLICES |
        ROUNDS | ALL_TO_ALL
    """, ALL_TO_ALL=ALL_TO_ALL, ROUNDS=ROUNDS, SLICES=SLICES)  # fmt: skip
ONE_DEVICE = ["parallel.microbatches=2"]
EXCEPTED = MatmulOptions(exclude=("head", "router", "attention_in", "attention_out"), first_layers=1, last_layers=0)


def _in_fp8(overrides: list[str]) -> Config:
    precision = {"matmul": "fp8_current", "matmul_options": EXCEPTED}
    return with_overrides(small(model=MODEL, precision=precision), overrides)


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize("name", LAYOUTS)
def test_tokens_in_codes_on_their_way_to_experts_change_a_step_by_their_rounding(name: str):
    """By as much on every layout: a token is rounded before it is sent, in blocks of its own."""
    in_codes = small(model=MODEL, parallel={"quantized": {"tokens": "float8_e4m3fn"}})
    run = SmallRun(with_overrides(in_codes, LAYOUTS[name]))
    loss, gradients = nonzero_gradients(run)
    wanted_loss, wanted, _ = on_one_device(small(model=MODEL))
    assert abs(loss - wanted_loss) <= 1e-3 * wanted_loss
    assert apart(gradients, wanted) == pytest.approx(0.0135, rel=0.02)


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize("name", SPLIT)
def test_shared_experts_in_fp8_give_the_numbers_of_one_device(name: str):
    """Nothing else of the model is quantized; a third of what that changes is the limit."""
    alone = _in_fp8(ONE_DEVICE)
    assert 1e-3 < changed_by_quantizing(alone) < 0.15
    assert_near_one_device(_in_fp8(SPLIT[name]), alone, changed_by_quantizing(alone) / 3)


ROUTED = ExpertsConfig(count=8, per_token=2, router="hash", width=256)
WIDE: dict[str, Any] = {"layers": 2, "experts": ROUTED, "embed": 128, "heads": 4, "kv_heads": 4}
LONG = {"sequence_length": 256, "batch_size": 4}
CHANGED = {"fp8_block": 0.040, "fp8_current": 0.051, "fp8_delayed": 0.051}
"""By so much of their norm gradients of this model change."""
ROUTED_ON = named("""
    expert and tensor ranks, several rounds: parallel.expert=2 | parallel.tensor=2 | parallel.fsdp=2 | ROUNDS |
        ALL_TO_ALL
    four expert ranks, slices, several rounds: parallel.expert=4 | SLICES | ROUNDS | ALL_TO_ALL
    own rows first, several rounds: parallel.expert=2 | SLICES | OWN_FIRST | ROUNDS | ALL_TO_ALL
    all gather, recomputed: parallel.expert=2 | GATHERED
    an exception and a quantized layer in one place of two stages: parallel.pipe=2 | parallel.expert=2 |
        parallel.microbatches=2 | ALL_TO_ALL
    """, ALL_TO_ALL=ALL_TO_ALL, ROUNDS=ROUNDS, OWN_FIRST=OWN_FIRST, SLICES=SLICES, GATHERED=GATHERED)  # fmt: skip


def _routed(overrides: list[str], matmul: str) -> Config:
    precision = {"matmul": matmul, "matmul_options": EXCEPTED}
    return with_overrides(small(model=WIDE, data=LONG, precision=precision), overrides)


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize("name", ROUTED_ON)
@pytest.mark.parametrize("matmul", CHANGED)
def test_routed_experts_in_fp8_give_the_numbers_of_one_device(matmul: str, name: str):
    """Nothing else of the model is quantized, and the limit is that of shared experts, a third of what that changes.
    Where tensor ranks do not split sums, layouts differ by which rows are neighbours in tiles, which hardly moves a
    code, and with scales of tensors and rows by nothing."""
    limit = CHANGED[matmul] / 3 if "tensor" in name else 1e-5
    assert_near_one_device(_routed(ROUTED_ON[name], matmul), _routed(ONE_DEVICE, matmul), limit)


@pytest.mark.long
@pytest.mark.parametrize("matmul", CHANGED)
def test_gradients_change_by_a_few_hundredths_where_routed_experts_are_quantized(matmul: str):
    assert changed_by_quantizing(_routed(ONE_DEVICE, matmul)) == pytest.approx(CHANGED[matmul], rel=0.1)


@pytest.mark.long
def test_what_a_step_saw_of_routed_experts_does_not_depend_on_slices_and_rounds():
    """Over slices, rounds and ranks the largest magnitude counts. It is of matrices that of the master weights, where
    they become codes; and the second step scales by what the first one saw."""
    found, names = [], ()
    for overrides in (ONE_DEVICE, ROUTED_ON["four expert ranks, slices, several rounds"]):
        run = SmallRun(_routed(overrides, "fp8_delayed"))
        assert quantizes_once(run.step.layout.plan)
        names = tensor_names(run.step.layout.config)
        state = run.step.residency.initial_state()
        weights = run.by_layer(state.master)["layers"]["all"]["mlp"]
        state, _ = run.step.train(state, run.batch(0), run.step.arguments)
        saw = np.asarray(jax.device_get(state.carried["matmuls"]))[0, 1]
        for matrix in ("up", "gate", "down"):
            assert saw[names.index(matrix)] == np.abs(weights[matrix][1]).max()
        found.append(saw)
        _, metrics = run.step.train(state, run.batch(1), run.step.arguments)
        scales = np.asarray(metrics.carried["matmuls"].scales)[1]
        most = [57344.0 if name.endswith(".gradient") else 448.0 for name in names]
        np.testing.assert_array_equal(scales, np.exp2(np.ceil(np.log2(np.float64(saw) / most))))
    assert {"experts_in.input", "experts_out.input", "up.gradient", "gate.gradient", "down.gradient"} <= set(names)
    assert (found[0] > 0).all()
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4)


def test_a_dense_kind_and_experts_of_another_have_columns_of_their_own():
    """Both have a matrix `up`, whose scales differ by the group."""
    kinds = {"dense": {"experts": None}, "routed": {}}
    config = small(
        model={**MODEL, "layers": 4, "kinds": kinds, "pattern": Pattern(unit=("dense", "routed"))},
        precision={"matmul": "fp8_delayed"},
    )
    names = tensor_names(config)
    assert len(set(names)) == len(names)
    assert {"mlp_in.up", "experts_in.up", "experts_in.up.gradient", "experts_in.input", "shared_up", "query"} <= set(
        names
    )
    assert "up" not in names
    for matrix in once_quantized_matrices(*SmallRun(config).step.layout.carried_request):
        kind, name = matrix.path[1], matrix.path[-1]
        group = {"dense": "mlp", "routed": "experts"}[kind]
        assert names[matrix.column] in (name, f"{group}_in.{name}", f"{group}_out.{name}")


@pytest.mark.parametrize("router", ["softmax_top_k", "cosine", "noisy_top_k"])
def test_routers_are_exceptions_with_a_reason_and_routed_experts_where_they_are_named(router: str):
    own = replace(EXPERTS, router=router, per_token=1)
    in_recipe = lambda recipe: small(model={**MODEL, "layers": 4, "experts": own}, precision={"matmul": recipe})
    for recipe in ("fp8_delayed", "fp8_current", "fp8_block", "mxfp8"):
        config = in_recipe(recipe)
        names, reasons = tensor_names(config), {one.what: one.why for one in exempt(config)}
        assert {"shared_up", "shared_gate", "shared_down.gradient", "query"} <= set(names)
        assert not {"router", "noise", "projection"} & set(names)
        assert "which experts" in reasons["router"]
        assert {"up", "gate", "down", "experts_in.input", "down.gradient"} <= set(names)
        excepted = replace(in_recipe(recipe).precision, matmul_options=MatmulOptions(exclude=("head", "experts_out")))
        config = replace(in_recipe(recipe), precision=excepted)
        assert "up" in tensor_names(config) and "down" not in tensor_names(config)
        assert {one.what: one.why for one in exempt(config)}["experts_out"] == "precision.matmul_options.exclude"

"""Models of several kinds of layers: the same numbers on every layout, and what layers report counted once."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.compiler.compile import plan_for
from jaxpar.config import load_config
from jaxpar.config.reading.overrides import with_overrides
from jaxpar.config.schema.model import Pattern
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layers.layer import DecoderLayer
from jaxpar.model import decoder
from jaxpar.runtime.passes import AUXILIARY_LOSS
from tests.sentences import named, refusals, refused
from tests.small_run import SmallRun, small, worst_difference
from tests.training.parity.one_device import TOLERANCE, assert_close, assert_equals_one_device

MODEL: dict[str, Any] = {
    "layers": 8,
    "kinds": {
        "local": {"window": 5, "rope": {"base": 100.0}, "norm_placement": "sandwich"},
        "wide": {
            "mlp": 64,
            "activation": "relu2",
            "qk_norm": True,
            "chunk": 11,
            "attention_temperature": {"floor": 3, "scale": 0.4},
        },
    },
    "pattern": Pattern(prefix=("wide",), unit=("local", "local", "wide"), suffix=("local",)),
}
"""Kinds with other weights, shapes and attention (windows, chunks), two units of them, a layer before and behind."""

LAYOUTS = named("""
    fsdp-tensor: parallel.fsdp=4 | parallel.tensor=2
    context-ring-full: parallel.context=4 | parallel.tensor=2 | parallel.context_strategy=ring | memory.remat=full
    pipe-1f1b: TWO_STAGES | parallel.tensor=2
    pipe-zb-h1: TWO_STAGES | parallel.schedule=zb-h1
    pipe-breadth-first-held: TWO_STAGES | parallel.schedule=breadth-first | parallel.virtual_stages=2
    pipe-interleaved-branching: TWO_STAGES | parallel.schedule=interleaved | parallel.virtual_stages=2 |
        parallel.pipe_ticks=branching
    pipe-gpipe-uneven-context: parallel.pipe=4 | parallel.context=2 | parallel.microbatches=4 |
        parallel.schedule=gpipe | parallel.stage_layers=[1, 2, 3, 2] |
        memory.remat=[{layers: 0, preset: none}, {layers: 1, preset: full}]
    offload-by-name: parallel.fsdp=2 | parallel.zero=2 |
        memory.remat={preset: full, layer_input: offload, value: offload}
    state-on-the-host-half-offloaded: parallel.fsdp=2 | parallel.zero=1 | parallel.microbatches=2 |
        memory.optimizer_offload=host | memory.offload_fraction=0.5
    """, TWO_STAGES="parallel.pipe=2 | parallel.fsdp=2 | parallel.microbatches=4")  # fmt: skip


@pytest.mark.matrix(ci=3)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_loss_and_gradients_equal_one_device(layout: str):
    run = SmallRun(with_overrides(small(model=MODEL), LAYOUTS[layout]))
    assert_equals_one_device(run, small(model=MODEL, memory={"remat": "none"}))


@pytest.mark.long
def test_kinds_that_change_nothing_are_the_plain_model():
    """The layer's number decides what it begins with and what it drops, whatever its kind is called."""
    same = {"kinds": {"a": {}, "b": {"window": None}}, "pattern": Pattern(unit=("a", "b", "a"))}
    plain = SmallRun(small(model={"dropout": 0.1}))
    mixed = SmallRun(small(model={"dropout": 0.1} | same, parallel={"fsdp": 2}))
    initial = mixed.by_layer(mixed.step.residency.initial_state().master)
    begun = plain.by_layer(plain.step.residency.initial_state().master)["layers"]["all"]
    rows = {"a": np.array([0, 2]), "b": np.array([1])}
    for kind, own in rows.items():
        jax.tree.map(np.testing.assert_array_equal, initial["layers"][kind], jax.tree.map(lambda a, o=own: a[o], begun))
    found_loss, found = mixed.loss_and_gradients()
    plain_loss, plain_gradients = plain.loss_and_gradients()
    assert found_loss == pytest.approx(plain_loss, rel=TOLERANCE)
    joined = {kind: jax.tree.map(lambda a, o=own: a[o], plain_gradients["layers"]["all"]) for kind, own in rows.items()}
    worst, leaf = worst_difference(found, plain_gradients | {"layers": joined})
    assert worst <= TOLERANCE, f"gradient of {leaf} differs by {worst:.1e}"


class Reporting(DecoderLayer):
    """A decoder layer with an auxiliary loss, the squares of its output, that counts its tokens."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.reports = (AUXILIARY_LOSS, "tokens")

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        x, _ = super().__call__(*arguments, **options)
        ones = jnp.float32(np.prod(x.shape[:-1]))
        return x, {AUXILIARY_LOSS: 0.01 * jnp.sum(jnp.square(x.astype(jnp.float32))), "tokens": ones + 0 * jnp.sum(x)}


REPORTING: dict[str, dict[str, Any]] = {
    "fsdp-context-tensor": {"fsdp": 2, "context": 2, "tensor": 2, "microbatches": 2},
    "pipe-zb-h1": {"pipe": 2, "fsdp": 2, "tensor": 2, "microbatches": 4, "schedule": "zb-h1"},
    "pipe-branching-uneven": {
        "pipe": 2, "fsdp": 2, "microbatches": 4, "pipe_ticks": "branching", "stage_layers": (1, 2)
    },
}  # fmt: skip


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize("layout", REPORTING)
def test_what_layers_report_is_counted_once(monkeypatch: pytest.MonkeyPatch, layout: str):
    quiet, _ = SmallRun(small()).loss_and_gradients()
    monkeypatch.setattr(decoder, "DecoderLayer", Reporting)
    alone, split = SmallRun(small()), SmallRun(small(parallel=REPORTING[layout]))
    loss, gradients = alone.loss_and_gradients()
    found_loss, found = split.loss_and_gradients()
    assert loss == pytest.approx(quiet, rel=1e-6), "the loss that is reported is that of the tokens alone"
    assert_close(found_loss, loss, found, gradients)
    _, one = alone.step.train(alone.step.residency.initial_state(), alone.batch(0), alone.step.arguments)
    _, many = split.step.train(split.step.residency.initial_state(), split.batch(0), split.step.arguments)
    for metrics in (one, many):
        assert float(metrics.report["tokens"]) == pytest.approx(3), "of three layers"
    assert float(many.report[AUXILIARY_LOSS]) == pytest.approx(float(one.report[AUXILIARY_LOSS]), rel=TOLERANCE)


@refusals("""
    model.layers=7 => model.pattern: | prefix of 1 | units of 3 | suffix of 1 | 7 layers (model.layers) | 5 or 8
    model.pattern={unit: [local, wied, local, local]} => model.pattern.unit: | 'wied' | model.kinds | wide?
    parallel.pipe=2 | parallel.stage_layers=[8, 0] | parallel.microbatches=2 => parallel.stage_layers: | every chunk |
        got [8, 0]
    """)  # fmt: skip
def test_patterns_that_do_not_fit_get_a_sentence(overrides: list[str], parts: tuple[str, ...]):
    with refused(*parts):
        SmallRun(with_overrides(small(model=MODEL), overrides))


def test_a_refused_attention_names_the_kind_that_it_is_about():
    kinds = "model.kinds={plain: {}, capped: {attention_softcap: 30.0}}"
    asked = [kinds, "model.pattern={unit: [plain, capped]}", "model.layers=2", "precision.compute=bfloat16"]
    config = load_config(None, [*asked, "attention.backend=cudnn", "parallel.fsdp=-1", "data.packed=false"])
    with refused("attention.backend", "'cudnn'", "kind capped", "soft-cap"):
        plan_for(config, parse_cluster("h100:1x8"))

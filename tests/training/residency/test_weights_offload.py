"""Layers whose weights and gradients rest in host memory: the same bits as on the device, and what is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxpar.config.validate import validate
from jaxpar.layout.memory.state_bytes import host_gradient_bytes, layer_bytes, offloaded_state_bytes
from jaxpar.layout.memory.state_storage import check_offloaded_state, offload_rows, streamed_bytes
from jaxpar.pages.units import size
from jaxpar.training.run.out_of_memory import explained
from tests.same_bits import assert_same_bits
from tests.sentences import refused
from tests.small_run import SmallRun, small

LAYERS, STEPS = 4, 3


pytestmark = pytest.mark.usefixtures("in_pieces")


def run_of(offload: str, **sections: Any) -> SmallRun:
    unlike = {name: own for name, own in sections.items() if name != "model"}
    memory: dict[str, Any] = {"optimizer_offload": "host", "weights_offload": offload}
    return SmallRun(small(**unlike, model={"layers": LAYERS} | sections.get("model", {}), memory=memory))


def steps_of(run: SmallRun) -> tuple[list[tuple[float, float]], Any, float]:
    """Loss and gradient norm of some steps, the last state as NumPy, and the loss of its weights."""
    state, metrics = run.advance(STEPS)
    assert {leaf.sharding.memory_kind for leaf in jax.tree.leaves(state.master)} == {"pinned_host"}
    losses_and_norms = [(float(of_step.loss), float(of_step.grad_norm)) for of_step in metrics]
    return losses_and_norms, jax.device_get(state), float(run.step.evaluate(state.master, run.batch(0))[0]["loss"])


CASES: dict[str, dict[str, Any]] = {
    "replicas, zero 3, microbatches": {"parallel": {"replica": 2, "fsdp": 2, "zero": 3, "microbatches": 2}},
    "one device, bfloat16": {"precision": {"compute": "bfloat16"}},
    "muon, tensor, zero 0": {
        "parallel": {"fsdp": 2, "tensor": 2, "zero": 0}, "optimizer": {"name": "muon", "ema": 0.9},
    },
}  # fmt: skip


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize("name", CASES)
def test_the_state_is_the_same_bits_as_with_weights_on_the_device(name: str):
    """Without clipping: the norm adds up the layers in another order, so its last bit may differ."""
    sections = CASES[name] | {"optimizer": CASES[name].get("optimizer", {}) | {"clip_norm": None}}
    before, state, loss = steps_of(run_of("none", **sections))
    found, streamed, evaluated = steps_of(run_of("host", **sections))
    assert [loss for loss, _ in found] == [loss for loss, _ in before]
    assert evaluated == pytest.approx(
        loss, rel=1e-4
    )  # XLA:CPU leaves out some roundings to bfloat16 in a forward alone
    assert [norm for _, norm in found] == pytest.approx([norm for _, norm in before], rel=1e-6)
    assert_same_bits(streamed, state)


def test_a_step_is_traced():
    """Tracing takes no compiler, so it is tried in every run of the tests."""
    step = (run := run_of("host", **CASES["muon, tensor, zero 0"])).step
    before = step.layout.state_shapes
    after, metrics = jax.eval_shape(step.train, before, run.batch(0), step.layout.arguments)
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, before) and metrics.loss.shape == ()


@pytest.mark.parametrize(("microbatches", "walks"), [(1, 1), (2, 3)])
def test_the_plan_states_where_they_are_stored_and_what_moves(microbatches: int, walks: int):
    """In a step of AdamW 12 bytes a parameter pass for the update, and 4 come for each walk through the layers but the
    first. Gradients come and go with each microbatch (the first has no use for them, but all run one program), and come
    for the norm and for the update."""
    step = run_of("host", parallel={"microbatches": microbatches}).step
    optimizer, weights = offload_rows(step.layout, step.mesh.devices.flat[0].device_kind)
    assert optimizer[0] == "optimizer offload"
    gradients = host_gradient_bytes(step.layout)
    assert weights[:2] == ("weights offload", size(gradients))
    assert "weights of layers are fetched for each use" in weights[2]
    there, back = streamed_bytes(step.layout)
    state, masters = offloaded_state_bytes(step.layout), offloaded_state_bytes(step.layout, master_alone=True)
    assert back == state + microbatches * gradients
    layers = walks * LAYERS * layer_bytes(step.layout).master
    assert there == state + masters + layers + (2 * microbatches) * gradients


def test_a_machine_without_room_for_the_gradients_is_one_sentence():
    """A state in files is no way out here: layers come from the master weights in host memory."""
    step = run_of("host").step
    needed = offloaded_state_bytes(step.layout) + host_gradient_bytes(step.layout)
    check_offloaded_state(step.layout, step.mesh, limit=needed)
    with refused(
        "of host memory for 1 device with",
        "gradients of 4 layers",
        "expected",
        "memory.weights_offload: none",
        "more machines",
    ):
        check_offloaded_state(step.layout, step.mesh, limit=needed - 1)


def test_pinned_memory_that_runs_out_is_reported_with_the_gradients():
    step = run_of("host").step
    state, gradients = offloaded_state_bytes(step.layout), host_gradient_bytes(step.layout)
    with (
        refused(
            f"{size(state, 2)} of master weights and moments",
            f"{size(gradients, 2)} of gradients of 4 layers",
            "0 B of activations",
            f"{size(state + gradients, 2)} in all",
            "memory.weights_offload: none",
        ),
        explained(step.layout, step.mesh),
    ):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of host memory while trying to allocate 8 bytes.")


REFUSED: list[tuple[tuple[str, ...], dict[str, dict[str, Any]]]] = [
    (("expected memory.optimizer_offload: host",), {"memory": {"optimizer_offload": "file"}}),
    (("parallel.pipe is 2", "expected 1"), {"parallel": {"pipe": 2}}),
    (("parallel.zero: 1",), {"parallel": {"fsdp": 2, "zero": 1}}),
    (("expected adamw, muon or lion",), {"optimizer": {"name": "adafactor"}}),
]


@pytest.mark.parametrize(("parts", "sections"), REFUSED)
def test_what_is_not_supported_is_one_sentence(parts: tuple[str, ...], sections: dict[str, dict[str, Any]]):
    sections = dict(sections)
    memory = {"optimizer_offload": "host", "weights_offload": "host"} | sections.pop("memory", {})
    with refused(*parts):
        validate(small(memory=memory, **sections))

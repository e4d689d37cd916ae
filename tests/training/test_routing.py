"""Routing replay: experts that come with a batch, in place of those that the routers would choose."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.schema.model import Pattern
from jaxpar.data import batch_rows
from jaxpar.layers.experts.feed_forward import ROUTING
from jaxpar.layers.experts.routers import ROUTERS
from jaxpar.layers.experts.routing import Routing
from jaxpar.runtime.batch import Field
from jaxpar.training.field_folder import FieldFolder
from tests.given_weights import state_with
from tests.sentences import refused
from tests.small_run import SmallRun, small, worst_difference
from tests.training.runs import fit, losses, run_config

OWN: dict[str, dict[str, Any]] = {
    "top_k_softmax": {"per_token": 2},
    "sigmoid": {"per_token": 2},
    "noisy_top_k": {"per_token": 2},
    "dense_to_sparse": {"per_token": 2, "router_options": {"anneal_steps": 10, "threshold": 0.05}},
    "base": {"per_token": 1},
    "expert_choice": {"per_token": 2, "router_options": {"force": True}},
    "gshard": {"per_token": 2},
    "softmax_top_k": {"per_token": 2},
    "cosine": {"per_token": 1},
    "sigmoid_top_k": {"per_token": 2},
    "k_top_1": {"per_token": 2},
    "sam": {"per_token": 2, "router_options": {"groups": 2}},
}


def config_of(router: str, routing: str | None = None) -> Any:
    """Layers of which the second alone has experts."""
    experts = ExpertsConfig(count=4, router=router, width=16, **OWN[router])
    model = {"layers": 2, "experts": experts, "kinds": {"dense": {"experts": None}, "routed": {}}}
    model["pattern"] = Pattern(prefix=("dense",), unit=("routed",))
    return small(model=model, data={"routing": routing})


def field_of(config: Any) -> Field:
    """The field of the routing."""
    (field,) = (one for one in SmallRun(config).step.layout.batch.fields if one.optional)
    return field


def write(folder: Path, batch: int, routed: np.ndarray) -> None:
    """The file of a batch."""
    np.save(folder / f"{batch:08}.npy", routed.astype(np.int16))


@pytest.mark.matrix(ci=2)
@pytest.mark.parametrize("router", OWN)
def test_a_run_that_replays_its_own_experts_has_its_own_loss_bit_for_bit(router: str, monkeypatch: pytest.MonkeyPatch):
    """And its gradients; with other experts it has another one."""
    chosen: list[np.ndarray] = []
    kind = ROUTERS[router]

    def recording(logits: jax.Array, *arguments: Any) -> Routing:
        routing = kind.route(logits, *arguments)
        jax.debug.callback(lambda indices: chosen.append(np.asarray(indices)), routing.indices)
        return routing

    run = SmallRun(config_of(router))
    state, rows = run.step.residency.initial_state(), run.rows(0)
    with monkeypatch.context() as patched:
        patched.setitem(ROUTERS, router, replace(kind, route=recording))
        loss, gradients = run.step.gradients(state, run.batch(0))
        jax.effects_barrier()
    routed = np.full((*rows["tokens"].shape, 2, chosen[0].shape[1]), -1, np.int32)
    routed[:, :, 1] = chosen[0].reshape(*routed.shape[:2], -1)
    again = SmallRun(config_of(router, "given"))
    found, same = again.step.gradients(state, again.place(rows | {ROUTING: routed}))
    assert float(found) == float(loss)
    worst, leaf = worst_difference(jax.device_get(same), jax.device_get(gradients))
    assert worst <= 1e-6, f"gradient of {leaf} differs by {worst:.1e}"
    other = np.where(routed >= 0, (routed + 1) % 4, -1)
    assert float(again.step.gradients(state, again.place(rows | {ROUTING: other}))[0]) != float(loss)


LAYOUTS: dict[str, dict[str, Any]] = {
    "1f1b": {"pipe": 2, "microbatches": 2, "schedule": "1f1b", "expert": 2},
    "expert-tensor-context": {"expert": 2, "tensor": 2, "context": 2},
}


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_replays_the_same_experts(layout: str):
    """Of layers that the stages do not divide."""
    experts = ExpertsConfig(count=4, router="sigmoid", width=16)
    model = {"layers": 3, "experts": experts, "kinds": {"dense": {"experts": None}, "routed": {}}}
    model["pattern"] = Pattern(prefix=("dense",), unit=("routed",))
    data = {"routing": "given"}
    one, other = (SmallRun(small(model=model, data=data, parallel=own)) for own in ({}, LAYOUTS[layout]))
    draws = np.random.default_rng(0).random((8, 32, 3, 4))
    routed = np.argsort(draws, axis=-1)[..., :2].astype(np.int32)
    initial = one.step.residency.initial_state()
    there = state_with(other.step, other.by_row(one.by_layer(initial.master)))
    wanted, _ = one.step.gradients(initial, one.place(one.rows(0) | {ROUTING: routed}))
    found, _ = other.step.gradients(there, other.place(other.rows(0) | {ROUTING: routed}))
    assert float(found) == pytest.approx(float(wanted), rel=1e-6)
    unlike, _ = other.step.gradients(there, other.place(other.rows(0) | {ROUTING: routed[::-1]}))
    assert abs(float(unlike) - float(wanted)) > 1e-5 * float(wanted)


@pytest.mark.long
def test_a_run_uses_the_experts_of_the_files_of_a_folder(tmp_path: Path):
    model = {"layers": 2, "experts": ExpertsConfig(count=4, width=16)}

    def config(name: str, **data: str) -> Any:
        evaluation = {"every": 1, "batches": 1, "sample_tokens": 2}
        return run_config(tmp_path, 2, model=model, run={"name": name}, data=data, evaluation=evaluation)

    for batch in range(2):
        write(tmp_path, batch, np.zeros((8, 32, 2, 2)) + np.arange(2))
    free, given = config("free"), config("given", routing=str(tmp_path))
    assert [len(fit(one)[1].evaluations) for one in (free, given)] == [2, 2]
    assert losses(free)[2] != losses(given)[2]


def test_files_that_do_not_fit_are_one_sentence(tmp_path: Path):
    config = config_of("top_k_softmax", str(tmp_path))
    folder, examples = FieldFolder(str(tmp_path), field_of(config)), np.arange(8, 16)
    with refused("data.routing", "00000001.npy"):
        folder.read(examples, 8, 32)
    write(tmp_path, 1, np.zeros((8, 32, 2, 3), np.int16))
    with refused("data.routing", "00000001.npy", "[8, 32, 2, 3]", "[8, 32, 2, 2]"):
        folder.read(examples, 8, 32)
    write(tmp_path, 1, np.full((8, 32, 2, 2), 4, np.int16))
    with refused("data.routing", "00000001.npy", "4", "3"):
        folder.read(examples, 8, 32)
    zipped = io.BytesIO()
    np.savez(zipped, a=np.zeros(3))
    for damaged in (b"", b"\x93NUMPY\x01\x00\x3c\x00" + bytes(60), zipped.getvalue(), b"PK\x03\x04"):
        (tmp_path / "00000001.npy").write_bytes(damaged)
        with refused("data.routing", "00000001.npy", "cannot read"):
            folder.read(examples, 8, 32)


def test_files_of_batches_beyond_two_to_the_31_examples_are_found(tmp_path: Path):
    """Eight rows a batch: 2^31 examples are 2^28 batches, and the row of an example is its number's remainder by 8."""
    config, number = config_of("top_k_softmax", str(tmp_path)), 2**28 + 1
    folder, routed = FieldFolder(str(tmp_path), field_of(config)), np.zeros((8, 32, 2, 2), np.int16)
    routed[:, :, :, 0] = np.arange(8)[:, None, None] % 4
    write(tmp_path, number, routed)
    rows = SmallRun(config_of("top_k_softmax")).data.train
    examples = batch_rows(rows, number, 8, [2, 5])["examples"]
    np.testing.assert_array_equal(folder.read(examples, 8, 32), routed[[2, 5]])


def test_a_router_anneals_by_updates_and_not_by_the_numbers_of_examples():
    """Numbers of examples wrap on devices: after 2^31 of them those of the first batches come again."""
    run = SmallRun(config_of("dense_to_sparse"))
    state, batch = run.step.residency.initial_state(), run.batch(0)
    loss = lambda updates: float(run.step.gradients(state._replace(applied=jnp.int32(updates)), batch)[0])
    assert len({loss(0), loss(5), loss(10)}) == 3 and loss(10) == loss(1000), "ten updates, then the last temperature"

"""Routing replay: the experts that one run chose, used by another."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.config.schema.experts import ExpertsConfig
from jaxpar.config.schema.model import Pattern
from jaxpar.data import batch_rows
from jaxpar.layers.experts.replay import EXPERTS
from jaxpar.layout.state import all_weights
from jaxpar.training.routing import Recorder, RoutingFolder
from tests.given_weights import state_with
from tests.sentences import refused
from tests.small_run import SmallRun, small, worst_difference
from tests.training.runs import fit, losses, run_config

OWN: dict[str, dict[str, Any]] = {
    "top_k_softmax": {"per_token": 2},
    "sigmoid": {"per_token": 2},
    "noisy_top_k": {"per_token": 2},
    "dense_to_sparse": {"per_token": 2, "anneal_steps": 10, "threshold": 0.05},
    "base": {"per_token": 1},
    "expert_choice": {"per_token": 2, "force": True},
    "gshard": {"per_token": 2},
    "softmax_top_k": {"per_token": 2},
    "cosine": {"per_token": 1},
    "k_top_1": {"per_token": 2},
    "sam": {"per_token": 2, "groups": 2},
}


def config_of(router: str, routing: str | None = None, **parallel: Any) -> Any:
    experts = ExpertsConfig(count=4, router=router, width=16, **OWN[router])
    return small(model={"layers": 2, "experts": experts}, data={"routing": routing}, parallel=parallel)


@pytest.mark.matrix(ci=2)
@pytest.mark.parametrize("router", OWN)
def test_a_run_that_replays_its_own_experts_has_its_own_loss_bit_for_bit(router: str):
    """And its gradients, on other ranks too; with other experts it has another one."""
    run = SmallRun(config_of(router))
    state = run.step.residency.initial_state()
    routed = Recorder(run.step, run.place)(all_weights(state), run.batch(0), 0)
    rows = run.rows(0)
    assert routed.shape[:3] == (*rows["tokens"].shape, 2) and routed.min() >= -1 and routed.max() == 3
    loss, gradients = run.step.gradients(state, run.batch(0))
    again = SmallRun(config_of(router, "given"))
    found, same = again.step.gradients(state, again.place(rows | {EXPERTS: routed.astype(np.int32)}))
    assert float(found) == float(loss)
    worst, leaf = worst_difference(jax.device_get(same), jax.device_get(gradients))
    assert worst <= 1e-6, f"gradient of {leaf} differs by {worst:.1e}"
    other = np.where(routed >= 0, (routed + 1) % 4, -1).astype(np.int32)
    assert float(again.step.gradients(state, again.place(rows | {EXPERTS: other}))[0]) != float(loss)


LAYOUTS: dict[str, dict[str, Any]] = {
    "1f1b": {"pipe": 2, "microbatches": 4, "schedule": "1f1b", "tensor": 2},
    "zb-v": {"pipe": 2, "microbatches": 4, "schedule": "zb-v", "virtual_stages": 2, "expert": 2},
    "expert-tensor-context": {"expert": 2, "tensor": 2, "context": 2, "expert_exchange": "all_to_all"},
    "expert-fsdp": {"expert": 4, "fsdp": 2, "zero": 3, "expert_exchange": "all_gather"},
}


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_records_what_one_device_does(layout: str):
    """Of layers that the stages do not divide."""
    experts = ExpertsConfig(count=4, router="sigmoid", width=16)
    model = {"layers": 5, "experts": experts, "kinds": {"dense": {"experts": None}, "routed": {}}}
    model["pattern"] = Pattern(prefix=("dense",), unit=("routed",))
    one, other = (SmallRun(small(model=model, parallel=own)) for own in ({}, LAYOUTS[layout]))
    initial = one.step.residency.initial_state()
    there = state_with(other.step, other.by_row(one.by_layer(initial.master)))
    wanted = Recorder(one.step, one.place)(all_weights(initial), one.batch(0), 0)
    found = Recorder(other.step, other.place)(all_weights(there), other.batch(0), 0)
    assert (wanted[:, :, 0] == -1).all() and (wanted[:, :, 1:] >= 0).any(axis=(0, 1, 3)).all()
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.long
def test_a_run_writes_its_experts_and_another_one_uses_them_on_another_layout(tmp_path: Path):
    experts = ExpertsConfig(count=4, width=16)

    def config(name: str, run: dict[str, Any], data: dict[str, Any], **parallel: int) -> Any:
        sections = {"model": {"layers": 2, "experts": experts}, "run": {"name": name, **run}, "parallel": parallel}
        return run_config(tmp_path, 2, **sections, data=data, evaluation={"every": 1, "batches": 1, "sample_tokens": 2})

    folder = str(tmp_path / "experts")
    first = config("first", {"record_routing": folder}, {}, expert=2, context=2)
    second = config("second", {}, {"routing": folder}, tensor=2, expert=2)
    heard = [fit(one)[1] for one in (first, second)]
    assert [len(one.evaluations) for one in heard] == [2, 2]
    wanted, found = losses(first), losses(second)
    assert wanted.keys() == found.keys() and len(found) == 2
    assert all(found[step] == pytest.approx(loss, rel=1e-5) for step, loss in wanted.items())


def test_files_that_do_not_fit_are_one_sentence(tmp_path: Path):
    config = config_of("top_k_softmax", str(tmp_path))
    folder, examples = RoutingFolder(tmp_path), np.arange(8, 16)
    with refused("data.routing", "00000001.npy"):
        folder.read(examples, config)
    folder.write(1, np.zeros((8, 32, 2, 3), np.int16))
    with refused("data.routing", "00000001.npy", "[8, 32, 2, 3]", "[8, 32, 2, 2]"):
        folder.read(examples, config)
    folder.write(1, np.full((8, 32, 2, 2), 4, np.int16))
    with refused("data.routing", "00000001.npy", "4", "3"):
        folder.read(examples, config)
    zipped = io.BytesIO()
    np.savez(zipped, a=np.zeros(3))
    for damaged in (b"", b"\x93NUMPY\x01\x00\x3c\x00" + bytes(60), zipped.getvalue(), b"PK\x03\x04"):
        (tmp_path / "00000001.npy").write_bytes(damaged)
        with refused("data.routing", "00000001.npy", "cannot read"):
            folder.read(examples, config)


def test_files_of_batches_beyond_two_to_the_31_examples_are_found(tmp_path: Path):
    """Eight rows a batch: 2^31 examples are 2^28 batches, and the row of an example is its number's remainder by 8."""
    config, number = config_of("top_k_softmax", str(tmp_path)), 2**28 + 1
    folder, routed = RoutingFolder(tmp_path), np.zeros((8, 32, 2, 2), np.int16)
    routed[:, :, :, 0] = np.arange(8)[:, None, None] % 4
    folder.write(number, routed)
    rows = SmallRun(config_of("top_k_softmax")).data.train
    examples = batch_rows(rows, number, 8, [2, 5])["examples"]
    np.testing.assert_array_equal(folder.read(examples, config), routed[[2, 5]])


def test_a_router_anneals_by_updates_and_not_by_the_numbers_of_examples():
    """Numbers of examples wrap on devices: after 2^31 of them those of the first batches come again."""
    config = config_of("dense_to_sparse")
    run = SmallRun(replace(config, model=replace(config.model, layers=1)))
    state, batch = run.step.residency.initial_state(), run.batch(0)
    loss = lambda updates: float(run.step.gradients(state._replace(applied=jnp.int32(updates)), batch)[0])
    assert len({loss(0), loss(5), loss(10)}) == 3 and loss(10) == loss(1000), "ten updates, then the last temperature"

"""Rows share slots in any order and company, and each has the tokens and log-probabilities that it has alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config import counting
from jaxpar.config.axes import axis_sizes
from jaxpar.config.counting import padded_vocab
from jaxpar.config.plan import AxisSizes
from jaxpar.config.schema.model import Pattern
from jaxpar.generation.engine import Engine
from jaxpar.generation.generator import Generator
from jaxpar.generation.memory import generation_bytes
from jaxpar.generation.prefill import put_rows
from jaxpar.generation.requests import Continuation, Request
from jaxpar.generation.sampling import Sampling
from jaxpar.mesh.build import build_mesh
from tests.small_run import SmallRun, small

VOCAB, CAPACITY, SLOTS, REQUESTS = 61, 64, 4, 9
HYBRID = {
    "layers": 3, "kinds": {"local": {"window": 5}, "state": {"mixer": "gated_deltanet"}, "wide": {}},
    "pattern": Pattern(unit=("local", "state", "wide")),
}  # fmt: skip
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "hybrid": (HYBRID, {}),
    "split": (HYBRID, {"fsdp": 2, "tensor": 2, "context": 2}),
}


def generator_of(model: dict[str, Any], parallel: dict[str, Any]) -> Generator:
    run = SmallRun(small(model={"vocab": VOCAB, "layers": 2} | model, parallel=parallel))
    return Generator(run.config, run.step.mesh, run.step.residency.initial_state().master)


@pytest.fixture(scope="module")
def plain() -> Generator:
    return generator_of(*CASES["plain"])


def requests_of(seed: int) -> list[Request]:
    """Ragged prompts and limits; some take the likeliest tokens, some draw; some have several answers."""
    rng = np.random.default_rng(seed)

    def request(number: int) -> Request:
        prompt = rng.integers(0, VOCAB, rng.integers(1, 20)).tolist()
        sampling = Sampling(*[(0.0,), (1.0,), (0.9, 1.3, 12, 0.9, 0.01)][number % 3])
        stop = set(rng.integers(0, VOCAB, 3).tolist())
        return Request(prompt, int(rng.integers(1, 25)), sampling, 7, 100 * number, 3 if number % 4 == 1 else 1, stop)

    return [request(number) for number in range(REQUESTS)]


def run_all(engine: Engine) -> None:
    while engine.busy:
        engine.step()


def drawn_by(engine: Engine, requests: Sequence[Request]) -> list[list[Continuation]]:
    for request in requests:
        engine.add(request)
    run_all(engine)
    return [[row.continuation() for row in request.rows] for request in requests]


def test_devices_do_not_see_what_the_host_changes_later(plain: Generator):
    """On a CPU, JAX takes an array whose first byte is at a multiple of 64 without a copy."""
    memory = np.zeros(64 + 16, np.int32)
    table = memory[-memory.ctypes.data % 64 // 4 :][:64].reshape(SLOTS, -1)
    assert table.ctypes.data % 64 == 0
    there = put_rows(plain.mesh, table)
    table[:] = 7
    assert not np.asarray(there).any()


def assert_same(found: Sequence[Sequence[Continuation]], wanted: Sequence[Sequence[Continuation]]) -> None:
    for rows, others in zip(found, wanted, strict=True):
        for one, other in zip(rows, others, strict=True):
            assert (one.tokens.tolist(), one.ended) == (other.tokens.tolist(), other.ended)
            np.testing.assert_allclose(one.log_probabilities, other.log_probabilities, atol=1e-5)
            assert (one.ending is None) == (other.ending is None)


@pytest.mark.matrix(quick=("plain",), ci=1)
@pytest.mark.parametrize("case", CASES)
def test_any_order_and_company_gives_the_tokens_and_log_probabilities_of_each_alone(case: str):
    """Also beside requests that are added and dropped on the way."""
    generator = generator_of(*CASES[case])
    wanted = [drawn_by(generator.engine(SLOTS, CAPACITY), [request])[0] for request in requests_of(0)]
    assert len({len(one.tokens) for rows in wanted for one in rows}) > 4, "lengths are ragged"
    for seed in (1, 2):
        rng = np.random.default_rng(seed)
        order, requests = rng.permutation(REQUESTS), requests_of(0)
        engine = generator.engine(2 * SLOTS, CAPACITY)
        for index in order:
            engine.add(requests[index])
            other = requests_of(seed)[index]
            engine.add(other)
            for _ in range(rng.integers(0, 4)):
                engine.step()
            if rng.random() < 0.5:
                engine.cancel(other)
        run_all(engine)
        assert_same([[row.continuation() for row in request.rows] for request in requests], wanted)


def test_a_row_that_ends_frees_its_slot_at_once(plain: Generator):
    """Two slots: while one row draws 24 tokens, the others take turns beside it."""
    engine = plain.engine(2, CAPACITY)
    long, short = Request([1, 2], 25), [Request([3], 5) for _ in range(6)]
    drawn_by(engine, [long, *short])
    assert engine.speed.steps == 2 * 24 and engine.speed.used == 2 * 24, "each first token is drawn with its prompt"
    ends = int(long.rows[0].tokens[3])
    engine = plain.engine(2, CAPACITY)
    ((one,), (other,)) = drawn_by(engine, [replace(long, stop=(ends,)), Request([3], 20)])
    assert one.ended and one.ending is not None and not other.ended
    assert engine.speed.steps == 2 * 19, "no step is for a row that has ended and no other that waits"


def test_a_prompt_is_read_once_for_all_its_answers_also_where_slots_are_few(plain: Generator):
    sampling = Sampling(temperature=1.0)
    alone = [
        drawn_by(plain.engine(1, CAPACITY), [Request([5, 6, 7], 6, sampling, stream=number)]) for number in range(5)
    ]
    engine = plain.engine(2, CAPACITY)
    (together,) = drawn_by(engine, [Request([5, 6, 7], 6, sampling, answers=5)])
    assert engine.speed.prompt_tokens == 3
    assert_same([together], [[rows[0] for (rows,) in alone]])


def test_a_request_that_is_dropped_leaves_its_slot_and_pages_to_another(plain: Generator):
    engine = plain.engine(1, CAPACITY, cache=64)
    first, second, third = (Request([number] * 40, 20) for number in (1, 2, 3))
    for request in (first, second, third):
        engine.add(request)
    for _ in range(3):
        engine.step()
    assert engine.waiting == 2 and engine.cached_tokens == 64
    engine.cancel(first)
    assert engine.cached_tokens == 0
    engine.cancel(second)
    run_all(engine)
    assert not second.rows[0].tokens and len(first.rows[0].tokens) < 20 and len(third.rows[0].tokens) == 20


def test_a_row_that_is_not_finite_ends_alone_and_leaves_pages_as_good_as_new(plain: Generator):
    weights = plain._weights
    wanted = drawn_by(plain.engine(1, CAPACITY), [Request([1] * 20, 30)])
    engine = plain.engine(1, CAPACITY)
    request = Request([1], 10)
    engine.add(request)
    engine.step()
    try:
        plain.update(jax.tree.map(lambda leaf: leaf * np.nan, weights))
        run_all(engine)
        drawn_by(engine, [Request([1] * 60, 4)])
    finally:
        plain.update(weights)
    assert not request.rows[0].finite and 1 <= len(request.rows[0].tokens) < 10 and not engine.busy
    assert_same(drawn_by(engine, [Request([1] * 20, 30)]), wanted)


def test_the_pages_of_a_prompt_are_shared_and_rows_wait_for_pages(plain: Generator):
    """A prompt of 40 tokens fills two pages of 16, and its rows have 8 tokens of a third."""
    prompt = np.random.default_rng(3).integers(0, VOCAB, 40).tolist()
    ask = lambda answers, stream: Request(prompt, 20, Sampling(1.0), stream=stream, answers=answers)
    alone = [drawn_by(plain.engine(1, CAPACITY), [ask(1, stream)])[0] for stream in range(5)]
    engine = plain.engine(4, CAPACITY, cache=16 * 8)
    group, other = ask(4, 0), ask(1, 4)
    engine.add(group)
    engine.add(other)
    engine.step()
    assert engine.cached_tokens == 16 * (2 + 3 * 2), "the last row waits for pages, not for a slot"
    run_all(engine)
    found = [row.continuation() for request in (group, other) for row in request.rows]
    assert_same([[one] for one in found], alone)
    assert engine.cached_tokens == 0 and engine.speed.prompt_tokens == 80, "the prompt of four answers is read once"


def test_a_cache_has_no_more_pages_than_rows_can_take(plain: Generator):
    engine, every = plain.engine(2, CAPACITY, cache=10**9), plain.engine(2, CAPACITY)
    assert engine._pages.each == every._pages.each == 2 * CAPACITY // engine._pages.tokens


PREFILL: dict[str, tuple[str, int]] = {"one": ("plain", 1), "wider": ("plain", 2), "split": ("split", 1)}
"""A case, and the data ranks of the mesh that reads prompts."""


@pytest.mark.matrix(quick=("wider",), ci=1)
@pytest.mark.parametrize("name", PREFILL)
def test_prompts_that_another_mesh_reads_give_the_same_tokens_and_log_probabilities(name: str):
    case, ranks = PREFILL[name]
    model, parallel = CASES[case]
    small_mesh = {axis: parallel.get(axis, 1) for axis in ("tensor", "context")}
    model_run = SmallRun(small(model={"vocab": VOCAB, "layers": 2} | model, parallel=small_mesh))
    mesh, weights = model_run.step.mesh, model_run.step.residency.initial_state().master
    other = build_mesh(AxisSizes(**axis_sizes(replace(model_run.config.parallel, fsdp=ranks))),
                       jax.devices()[mesh.size : mesh.size * (1 + ranks)])  # fmt: skip
    wanted = drawn_by(Generator(model_run.config, mesh, weights).engine(SLOTS, CAPACITY), requests_of(0))
    generator = Generator(model_run.config, mesh, weights, prefill=other)
    engine = generator.engine(SLOTS, CAPACITY)
    assert_same(drawn_by(engine, requests_of(0)), wanted)
    assert engine.speed.handed_bytes > 0


def test_the_bytes_of_a_cache_that_is_handed_over_are_those_of_the_prompt(plain: Generator):
    config = plain.config.model
    other = build_mesh(AxisSizes(**axis_sizes(plain.config.parallel)), jax.devices()[1:2])
    engine = Generator(plain.config, plain.mesh, plain._weights, prefill=other).engine(2, CAPACITY)
    drawn_by(engine, [Request([1, 2, 3], 2, answers=2)])
    cached = 32 * config.layers * 2 * counting.kv_heads(config) * counting.head_dim(config) * 4
    rest = engine.speed.handed_bytes - cached
    assert rest == 4 + padded_vocab(config) + 2 * (4 + 8 * 4 + 1), "lengths, tokens that were seen, and draws"


def test_more_prompts_than_slots_draw_with_numbers_of_their_own(plain: Generator, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(plain, "_slots", 2)
    sampling = Sampling(temperature=1.0)
    found = plain.continued([[9]] * 5, 8, sampling=sampling)
    assert len({tuple(one.tokens) for one in found}) == 5
    (last,) = plain.continued([[9]], 8, sampling=sampling, first_number=4)
    assert_same([[found[4]]], [[last]])


@pytest.mark.matrix(quick=(), ci=1)
@pytest.mark.parametrize("case", CASES)
def test_the_cache_takes_the_bytes_that_are_predicted(case: str):
    """A prompt of 31 tokens fills one page of 16, and each answer of 16 tokens has two more."""
    generator = generator_of(*CASES[case])
    predicted = generation_bytes(generator._layout, 2, 4, 31, 16)
    requests = [Request(range(31), 16, answers=4) for _ in range(2)]
    engine = generator.engine(8, 47, requests=requests)
    for one in requests:
        engine.add(one)
    engine.step()
    assert engine._state is not None
    arrays = jax.tree.leaves(engine._state.cache)
    assert predicted.cache == sum(one.addressable_shards[0].data.nbytes for one in arrays)
    assert engine._pages.each * engine._pages.ranks == 24, "18, and the next size of a pool"

"""Inputs registered from outside the package: loss and gradients in float64 on any layout, training, and refusals."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.config import load_config
from jaxpar.config.mappings.residual import PerLayerEmbeddings
from jaxpar.config.parts import DATA_SOURCES, INPUTS
from jaxpar.config.schema import ModelConfig
from jaxpar.generation.generator import Generator
from jaxpar.interop.config_json import family_for
from jaxpar.layers.counting import parameter_count
from jaxpar.layers.declaration.part import Weights
from jaxpar.layers.inputs.token_embedding import TokenEmbedding
from jaxpar.layers.norm import rms_normalize
from jaxpar.model.flops import flops_per_step
from tests.extending import vectors
from tests.reference import decoder64
from tests.sentences import refused
from tests.small_run import SmallRun, small
from tests.training.parity.one_device import assert_close
from tests.training.runs import fit, losses, run_config

LAYOUTS: dict[str, dict[str, Any]] = {
    "one device": {},
    "fsdp": {"fsdp": 2, "zero": 3, "microbatches": 2},
    "context and tensor": {"context": 2, "tensor": 2, "microbatches": 2},
    "pipe": {"pipe": 2, "fsdp": 2, "microbatches": 2},
    "shared ends": {"pipe": 2, "tensor": 2, "microbatches": 2, "pipe_ends": "shared"},
}
EPSILON = 1e-5


class NormedTokens(TokenEmbedding):
    """Rows of the token table after a norm: a result that is not linear in them."""

    def __call__(self, batch: Mapping[str, jax.Array]) -> jax.Array:
        x = super().__call__(batch)
        return rms_normalize(x, jnp.ones(x.shape[-1], jnp.float32), EPSILON)


class Bare(vectors.Vectors):
    """An input without weights."""

    @staticmethod
    def declare(model: ModelConfig) -> Weights:
        return Weights()


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entries of the registries, for the time of a test."""
    monkeypatch.setitem(INPUTS, "vectors", vectors.INPUT)
    monkeypatch.setitem(INPUTS, "normed_tokens", "tests.extending.test_vectors:NormedTokens")
    monkeypatch.setitem(INPUTS, "bare", "tests.extending.test_vectors:Bare")
    monkeypatch.setitem(DATA_SOURCES, "vectors_of_stdlib", vectors.SOURCE)


def run_of(model: dict[str, Any] | None = None, **sections: dict[str, Any]) -> SmallRun:
    return SmallRun(small(model={"layers": 2, "input": "vectors"} | (model or {}), **sections))


def with_vectors(run: SmallRun, step: int = 0) -> dict[str, np.ndarray]:
    """The batch of a step with random vectors."""
    rows = run.rows(step)
    shape = *rows["tokens"].shape, vectors.WIDTH
    return rows | {"vectors": np.random.default_rng(step).standard_normal(shape, np.float32)}


def expected(run: SmallRun, weights: Any, batch: dict[str, np.ndarray], entered: Callable[[Any], Any]) -> Any:
    """Loss and gradients in float64, where `entered` makes the residual stream [token, embed] from the input's weights.

    The reference looks up a row of its table for each token: these rows are what entered, and their gradients go back.
    """
    with jax.enable_x64(True):
        doubles = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), weights["embedding"])
        x, pullback = jax.vjp(entered, doubles)
        tokens = np.arange(len(x)).reshape(batch["tokens"].shape)
        one_row_each = weights | {"embedding": {"tokens": np.asarray(x)}}
        options = asdict(run.config.model)
        loss, gradients = decoder64.loss_and_gradients(one_row_each, options, batch | {"tokens": tokens})
        (of_input,) = pullback(jnp.asarray(gradients["embedding"]["tokens"]))
        return loss, gradients | {"embedding": jax.device_get(of_input)}


def assert_float64(run: SmallRun, batch: dict[str, np.ndarray], entered: Callable[[Any], Any]) -> None:
    state = run.step.residency.initial_state()
    wanted, gradients = expected(run, run.by_layer(state.master), batch, entered)
    loss, found = run.step.gradients(state, run.place(batch))
    assert_close(loss, wanted, run.by_layer(found), gradients)


@pytest.mark.matrix(quick=("context and tensor",), ci=3)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_loss_and_gradients_of_vectors_equal_float64(layout: str):
    run = run_of(parallel=LAYOUTS[layout])
    batch = with_vectors(run)
    flat = np.float64(batch["vectors"]).reshape(-1, vectors.WIDTH)
    assert_float64(run, batch, lambda weights: flat @ weights["projection"])


@pytest.mark.parametrize(
    "parallel",
    [
        {"fsdp": 2, "tensor": 2, "zero": 3},
        pytest.param({"fsdp": 2, "zero": 3, "overlap": {"embedding_messages": "rows"}}, marks=pytest.mark.long),
        pytest.param(LAYOUTS["shared ends"], marks=pytest.mark.long),
    ],
    ids=str,
)
def test_loss_and_gradients_of_an_input_that_is_not_linear_in_its_rows_equal_float64(parallel: dict[str, Any]):
    run = run_of({"input": "normed_tokens"}, parallel=parallel)
    batch = run.rows(0)

    def entered(weights: Any) -> Any:
        x = weights["tokens"][batch["tokens"].ravel()]
        return x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + EPSILON)

    assert_float64(run, batch, entered)


@pytest.mark.long
def test_a_run_reads_its_vectors_from_a_source_of_data(tmp_path: Path):
    model, data = {"layers": 2, "input": "vectors", "vocab": None}, {"source": "vectors_of_stdlib"}
    config = run_config(tmp_path, 6, model=model, data=data, evaluation={"batches": 1, "every": 6})
    fit(config)
    first, *_, last = losses(config).values()
    assert last < first


def test_a_batch_without_its_field_is_refused():
    run = run_of()
    with refused("no field vectors", f"float32 [8, 32, {vectors.WIDTH}]"):
        run.place(run.rows(0))
    assert "tokens" not in run.place(with_vectors(run))


def test_its_weights_and_flops_are_counted():
    model, tokens = run_of().config.model, replace(run_of().config.model, input="tokens")
    table, projection = 64 * 32, vectors.WIDTH * 32
    assert parameter_count(tokens, padded=False) - parameter_count(model, padded=False) == table - projection
    flops = lambda one: flops_per_step(one, 256, {None: 0}, 64)
    assert flops(model) - flops(tokens) == 6 * projection * 256


def test_what_needs_tokens_is_refused_by_one_sentence():
    with refused("model.input", "bare", "no weights"):
        run_of({"input": "bare"})
    with refused("model.tied", "vectors", "false"):
        run_of({"tied": True})
    with refused("model.position", "learned", "vectors"):
        run_of({"position": "learned"})
    with refused("model.per_layer_embeddings", "model.input", "vectors", "null"):
        run_of({"per_layer_embeddings": PerLayerEmbeddings(4)})
    with refused("model.embedding_scale", "vectors"):
        run_of({"embedding_scale": True})
    with refused("model.input", "vectors", "evaluation.sample_tokens"):
        run_of(evaluation={"sample_tokens": 8})
    with refused("parallel.overlap.embedding_messages", "model.input", "vectors"):
        run_of(parallel={"fsdp": 2, "zero": 3, "overlap": {"embedding_messages": "rows"}})
    run = run_of()
    with refused("model.input", "vectors", "generation"):
        Generator(run.config, run.step.mesh, run.step.residency.initial_state().master)
    with refused("model.input", "vectors", "tokens"):
        family_for(run.config.model)
    with refused("model.input", "vectros", "vectors"):
        load_config(None, ["model.input=vectros"])

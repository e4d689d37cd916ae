"""Generation gives the tokens and the log-probabilities of the training step's forward, on any layout."""

import gc
import mmap
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.generation.generator import Generator
from jaxpar.generation.layout import bucket, generation_layout, prompt_bucket
from jaxpar.generation.sampling import Sampling
from jaxpar.generation.unstacked import unstacked
from jaxpar.interop.sources.hf_folder import HFFolder
from jaxpar.layout.step_layout import shardings
from jaxpar.training.run.reference import initial_state_from
from tests.generation.gpu_decode import EMBED
from tests.goldens.loading import BIDIRECTIONAL, FOLDER, NAMES, ROUTED, WITH_STATE, section_of
from tests.gpu_compile import in_child
from tests.model.test_goldens import logits
from tests.reference.decoder64 import plain_batch
from tests.same_bits import assert_same_bits
from tests.sentences import refused
from tests.small_run import SmallRun, small

TOLERANCE = 1e-5
LENGTHS, NEW = (3, 17, 8), 20
LAYOUTS: dict[str, dict[str, Any]] = {
    "one_device": {},
    "split": {"fsdp": 2, "context": 2, "tensor": 2},
    "context4": {"context": 4, "context_strategy": "ring", "context_order": "zigzag"},
    "tensor4": {"tensor": 4, "replica": 2, "zero": 2},
    "expert2": {"expert": 2, "fsdp": 2, "tensor": 2, "experts": {"exchange": "all_to_all"}},
}
ROWS = [
    (name, layout)
    for name in NAMES
    if name not in BIDIRECTIONAL
    for layout, keys in LAYOUTS.items()
    if name in ROUTED or "expert" not in keys
]
"""Each golden model on each layout that it can have."""


def model_of(name: str) -> tuple[HFFolder, dict[str, Any]]:
    source = HFFolder(FOLDER / name)
    return source, section_of(source.model)


def weights_on(run: SmallRun, source: HFFolder) -> Any:
    residency = run.step.residency
    return initial_state_from(source, residency.initial_state(), residency).master


def prompts(vocab: int) -> list[list[int]]:
    draw = np.random.default_rng(0)
    return [draw.integers(0, vocab, length).tolist() for length in LENGTHS]


def run_of(options: dict[str, Any], parallel: dict[str, Any], length: int = 64, rows: int = 8) -> SmallRun:
    data = {"batch_size": rows, "sequence_length": length}
    return SmallRun(small(model=options, parallel=parallel, data=data))


def log_probabilities(run: SmallRun, weights: Any, rows: list[list[int]]) -> np.ndarray:
    """[row, index, token] by the training step's forward."""
    tokens = np.zeros((8, 64), np.int32)
    for number, row in enumerate(rows):
        tokens[number, : len(row)] = row
    found = np.asarray(logits(run.step)(weights, run.place(plain_batch(tokens))), np.float64)
    found -= found.max(axis=-1, keepdims=True)
    return found - np.log(np.exp(found).sum(axis=-1, keepdims=True))


def check_greedy(generator: Generator, vocab: int, reference: SmallRun, weights: Any) -> None:
    """Greedy tokens are the likeliest of the training forward of `reference`, with its log-probabilities."""
    given = prompts(vocab)
    found = generator.continued(given, NEW)
    rows = [[*prompt, *own.tokens.tolist()] for prompt, own in zip(given, found, strict=True)]
    for prompt, own, after in zip(given, found, log_probabilities(reference, weights, rows), strict=False):
        assert len(own.tokens) == NEW and not own.ended
        after = after[len(prompt) - 1 : len(prompt) - 1 + NEW]
        assert after.argmax(axis=-1).tolist() == own.tokens.tolist()
        np.testing.assert_allclose(own.log_probabilities, after.max(axis=-1), atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.matrix(quick=("llama-split",), ci=4)
@pytest.mark.parametrize(("name", "layout"), ROWS)
def test_greedy_tokens_are_the_likeliest_of_the_training_forward(name: str, layout: str):
    source, options = model_of(name)
    order = {"context_order": "contiguous"} if name in WITH_STATE and "context_order" in LAYOUTS[layout] else {}
    run = run_of(options, LAYOUTS[layout] | order)
    generator, reference = Generator(run.config, run.step.mesh, weights_on(run, source)), run_of(options, {})
    check_greedy(generator, options["vocab"], reference, weights_on(reference, source))


def test_weights_of_layers_are_no_copies_on_cpus():
    _, options = model_of("gemma3")
    run = run_of(options, {"fsdp": 2, "tensor": 2})
    layout = generation_layout(run.config, run.step.mesh)
    placed = jax.jit(
        lambda tree: jax.tree.map(lambda leaf: leaf.astype(layout.placements.storage.dtype), tree),
        out_shardings=shardings(run.step.mesh, layout.placements.storage.layout),
    )(run.step.residency.initial_state().master)
    found = unstacked(placed, layout.order)
    pointers = lambda array: [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]
    for kind, order in layout.order.stacks.items():
        stack, layers = placed["layers"][kind]["mlp"]["up"], found["layers"][kind]
        assert len(layers) == order.rows == len(stack)
        for row, layer in enumerate(layers):
            assert_same_bits(layer["mlp"]["up"], stack[row])
            assert layer["mlp"]["up"].sharding.is_equivalent_to(stack[row].sharding, stack.ndim - 1)
            size = layer["mlp"]["up"].addressable_shards[0].data.nbytes
            assert size % 64 or pointers(layer["mlp"]["up"]) == [first + row * size for first in pointers(stack)]


def generator_of(layout: dict[str, Any], **options: Any) -> Generator:
    source, model = model_of("llama")
    run = run_of(model, layout)
    return Generator(run.config, run.step.mesh, weights_on(run, source), **options)


@pytest.mark.long
def test_draws_do_not_depend_on_the_layout_nor_on_other_rows():
    sampling = Sampling(temperature=0.8, top_k=20, top_p=0.9, repetition_penalty=1.3)
    given = prompts(generator_of({}).config.model.vocab or 0)
    alone = generator_of({}, seed=3)
    found = alone.continued(given, NEW, sampling=sampling)
    split = generator_of({"fsdp": 2, "tensor": 2, "zero": 3}, zero=3, seed=3).continued(given, NEW, sampling=sampling)
    assert [own.tokens.tolist() for own in found] == [own.tokens.tolist() for own in split]
    (second,) = alone.continued(given[1:2], NEW, sampling=sampling, first_number=1)
    assert second.tokens.tolist() == found[1].tokens.tolist()
    (other,) = alone.continued(given[1:2], NEW, sampling=sampling, first_number=5)
    assert other.tokens.tolist() != found[1].tokens.tolist()


def test_rows_end_by_themselves_and_lengths_in_a_bucket_share_programs():
    generator = generator_of({})
    given = prompts(generator.config.model.vocab or 0)
    whole = generator.continued(given, NEW)
    end = int(whole[0].tokens[4])
    heard: list[tuple[int, int]] = []

    def on_token(row: int, token: int) -> bool:
        heard.append((row, token))
        return row == 1

    found = generator.continued([given[0], given[1], given[2][:5]], NEW, stop=[end], on_token=on_token)
    first = whole[0].tokens.tolist()
    assert found[0].tokens.tolist() == first[: first.index(end)] and found[0].ended
    assert found[1].tokens.tolist() == whole[1].tokens[:1].tolist() and found[1].ended
    assert [row for row, _ in heard].count(1) == 1 and len(found[2].log_probabilities) == len(found[2].tokens)
    assert generator.programs.compiles == 3, "prompts of 32 tokens, one that gives them slots, and one that decodes"
    generator.continued([given[0] * 30], 30)
    assert generator.programs.compiles == 6, "one prompt of 96 tokens, and a row of 128"
    generator.continued([given[0] * 40], 5)
    assert generator.programs.compiles == 8, "one prompt of 128 tokens, and its slot; rows have 128 as before"


@pytest.mark.long
def test_hundreds_of_prompts_one_after_the_other_leave_nothing_behind():
    """500 prompts of any length: after the first hundred no program is compiled and no array is left."""
    generator, draw = generator_of({}), np.random.default_rng(0)
    vocab = generator.config.model.vocab or 0
    left: list[tuple[int, int]] = []
    memory: list[int] = []
    for number in range(500):
        given = draw.integers(0, vocab, draw.integers(1, 100)).tolist()
        (found,) = generator.continued([given], 2)
        assert len(found.tokens) == 2
        if number % 100 == 99:
            gc.collect()
            left.append((generator.programs.compiles, len(jax.live_arrays())))
            memory.append(int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE)
    assert len({*left}) == 1, left
    assert memory[-1] - memory[0] < 32 * 2**20, memory


@pytest.mark.long
def test_no_weights_of_layers_are_copied_for_a_token_on_a_gpu():
    assert in_child("tests.generation.gpu_decode:largest_written") < EMBED * EMBED, "the largest is a cache"


def test_prompts_are_padded_by_half_at_most():
    lengths = [1, 32, 33, 48, 49, 64, 65, 96, 97, 128, 129, 192, 193]
    assert [prompt_bucket(tokens, 1) for tokens in lengths] == [32, 32, 48, 48, 64, 64, 96, 96, 128, 128, 192, 192, 256]
    assert prompt_bucket(90, 10) == 100 and bucket(90, 1) == 128
    assert [prompt_bucket(1, part) for part in (2, 8, 128)] == [64, 64, 128]


@pytest.mark.parametrize(
    ("given", "parts"), [([[]], ("prompt 0", "at least one token")), ([[1], [10**6]], ("prompt 1", "1000000"))]
)
def test_wrong_prompts_are_refused(given: list[list[int]], parts: tuple[str, ...]):
    with refused(*parts):
        generator_of({}).continued(given, 1)


def test_a_pipeline_is_refused():
    with refused("parallel.pipe", "expected 1"):
        generator_of({"pipe": 2})

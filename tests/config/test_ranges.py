"""The range and type of each key, and products of keys that no machine holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jaxpar.config import Config
from jaxpar.config.bounds import BOUNDS
from jaxpar.config.reading.sections import SECTIONS
from jaxpar.config.reading.typed import field_types
from jaxpar.layers.checks import validate
from tests.config.refusals import refusal
from tests.sentences import refused


def test_every_numeric_key_has_a_range_and_every_range_a_key():
    numeric = {
        f"{section}.{key}"
        for section, record in SECTIONS.items()
        for key, annotation in field_types(record).items()
        if annotation in (int, float, int | None, float | None)
    }
    assert set(BOUNDS) == numeric


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("run.steps=0", "run.steps: must be at least 1, got 0"),
        ("run.seed=-1", "run.seed: must be from 0 to 2^32 - 1, got -1"),
        ("model.embed=-8", "model.embed: must be at least 1, got -8"),
        ("model.kv_heads=0", "model.kv_heads: must be at least 1, got 0"),
        ("model.window=0", "model.window: must be at least 1, got 0"),
        ("model.dropout=1", "model.dropout: must be from 0 to below 1, got 1.0"),
        ("model.norm_epsilon=0", "model.norm_epsilon: must be above 0, got 0.0"),
        ("parallel.microbatches=0", "parallel.microbatches: must be at least 1, got 0"),
        ("run.steps=2147483648", "run.steps: must be at most 2^31 - 1, got 2147483648"),
        ("run.steps=1" + 30 * "0", f"run.steps: expected a number of at most 64 bits, got {10**30}"),
        ("model.embed=1000000000000000000", "model.embed: must be at most 2^24, got 1000000000000000000"),
        ("data.prefetch=1000000000000000000", "data.prefetch: must be at most 1024, got 1000000000000000000"),
        ("model.z_loss=1e300", "model.z_loss: must be at most 1e+30, got 1e+300"),
        ("parallel.tensor=0", "parallel.tensor: must be at least 1, or -1 for what remains, got 0"),
        ("optimizer.decay_fraction=1.5", "optimizer.decay_fraction: must be from 0 to 1, got 1.5"),
        ("optimizer.warmup_steps=-1", "optimizer.warmup_steps: must be at least 0, got -1"),
        ("data.batch_size=0", "data.batch_size: must be at least 1, got 0"),
        ("evaluation.every=-1", "evaluation.every: must be at least 0, got -1"),
        ("checkpoint.keep_last=0", "checkpoint.keep_last: must be at least 1, got 0"),
        ("checkpoint.every_minutes=-1", "checkpoint.every_minutes: must be at least 0, got -1.0"),
        (
            "memory.remat=ful",
            "memory.remat: expected none, full, selective, gemm_last, auto, a mapping or a list, got 'ful'; did you "
            "mean full?",
        ),
        (
            "model.kinds.local.window=128",
            "model.kinds.local.window: no such key; a mapping is written as a whole, as in "
            "model.kinds={local: {window: ...}}",
        ),
        (
            "memory.remat.query=save",
            "memory.remat.query: no such key; a mapping is written as a whole, as in memory.remat={query: ...}",
        ),
        ("model.layers.first=3", "model.layers.first: no such key; did you mean layers?"),
        ("model.kinds={1: {}}", "model.kinds: expected names of its entries that are text, got 1"),
        ("model.kinds={global: }", "model.kinds.global: expected a mapping, got null; did you mean {}?"),
        ("model.pattern=[a, b]", "model.pattern: expected a mapping or null, got [a, b]; did you mean {unit: [a, b]}?"),
        (
            "run.name=a/b",
            "run.name: expected the name of one folder, without control characters, got 'a/b'; put parent folders in "
            "run.dir",
        ),
        (
            "run.name=..",
            "run.name: expected the name of one folder, without control characters, got '..'; put parent folders in "
            "run.dir",
        ),
        (
            "run.wandb=team/project",
            "run.wandb: expected the name of a project, at most 128 letters and none of /\\#?%:, got 'team/project'",
        ),
        ("run.profile=15", "run.profile: expected first:last, for example 10:15, got '15'"),
        ("run.profile=15:10", "run.profile: expected first:last, for example 10:15, got '15:10'"),
        ("run.profile=0:3", "run.profile: expected first:last, for example 10:15, got '0:3'"),
        ("run.profile=5000:5001", "run.profile: 5000:5001 begins after the last of run.steps (1000)"),
        (
            "data.source=tokens",
            "data.path: null, and data.source: tokens needs the path of a token folder or a file of tokens",
        ),
        (
            "data.path=train.npy",
            "data.path: 'train.npy' would not be used, because data.source is stdlib; expected data.source: tokens "
            "with it, or null",
        ),
    ],
)
def test_a_value_out_of_range_is_one_sentence(override, sentence):
    assert refusal(override) == sentence


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ("model.layers=10000", "model.embed=16777216", "model.mlp=16777216"),
            "model: layers 10000, embed 16777216, mlp 16777216, heads 8, vocab None make 2e+19 parameters; expected "
            "at most 1e+15",
        ),
        (
            ("data.batch_size=16777216", "data.sequence_length=131072"),
            "data.batch_size x sequence_length x (1 + prefetch): 16777216 x 131072 x 3 tokens in memory; expected at "
            "most 2^36",
        ),
        (
            ("parallel.fsdp=1048576", "parallel.tensor=8"),
            "parallel: the mesh (fsdp 1048576 x tensor 8) takes 8388608 devices; expected at most 2^20",
        ),
        (
            ("model.vocab=2147483647",),
            "model.vocab: 2147483647 is padded to 2147483648, a multiple of model.vocab_multiple (128); expected at "
            "most 2^31 - 1",
        ),
    ],
)
def test_what_no_machine_holds_is_refused_before_it_is_built(overrides, sentence):
    assert refusal(*overrides) == sentence


def test_every_number_has_a_largest_value():
    for key, bound in BOUNDS.items():
        assert bound.refusal(1e300) is not None, key


def test_a_configuration_built_in_python_is_checked_for_types_too():
    config = Config()
    with refused("model.layers", "a whole number", "'four'"):
        validate(replace(config, model=replace(config.model, layers="four")))  # pyright: ignore[reportArgumentType]

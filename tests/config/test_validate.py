"""Every check between keys: what it refuses, in which words, and what it lets through."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from jaxpar.config import Config, UserError, load_config, resolve_axes
from jaxpar.config import validate as validate_module
from jaxpar.config.bounds import BOUNDS
from jaxpar.config.reading.overrides import with_overrides
from jaxpar.config.reading.sections import SECTIONS
from jaxpar.config.reading.typed import field_types
from jaxpar.config.validate import profile_steps
from jaxpar.layers.checks import validate
from jaxpar.training.run.trainer import Trainer
from tests.sentences import refused
from tests.small_run import small


def refusal(*overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        validate(load_config(None, overrides))
    return str(caught.value)


def test_the_defaults_are_valid():
    validate(Config())


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
        ("run.name=a/b", "run.name: expected the name of one folder, got 'a/b'; put parent folders in run.dir"),
        ("run.name=..", "run.name: expected the name of one folder, got '..'; put parent folders in run.dir"),
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


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["model.kv_heads=3"],
            "model.heads: 8 is not divisible by model.kv_heads (3); expected for example 6 or 9",
        ),
        (
            ["model.embed=100"],
            "model.embed: 100 is not divisible by model.heads (8); expected for example 96 or 104; or set "
            "model.head_dim",
        ),
        (
            ["data.source=tokens", "data.path=a", "data.sources={b: 1, c: 2}"],
            "data.path: 'a' is given with data.sources, which names 2 folders; expected one of the two keys, and null "
            "for the other",
        ),
        (["model.head_dim=31"], "model.head_dim: rotary embeddings need an even width, got 31"),
        (
            ["model.rope_scaling=llama3", "model.rope_low_frequency=4"],
            "model.rope_low_frequency: expected less than model.rope_high_frequency (4.0), got 4.0",
        ),
        (
            ["model.position=learned", "model.max_positions=512"],
            "data.sequence_length: 1024 is more than the learned positions, model.max_positions (512)",
        ),
        (
            ["parallel.schedule=1f1b"],
            "parallel.schedule: 1f1b would not be used, because parallel.pipe is 1",
        ),
        (
            ["parallel.virtual_stages=2"],
            "parallel.virtual_stages: 2 would not be used, because parallel.pipe is 1",
        ),
        (
            ["parallel.stage_layers=[2, 4]"],
            "parallel.stage_layers: [2, 4] would not be used, because parallel.pipe is 1",
        ),
        (
            ["parallel.pipe_ends=shared"],
            "parallel.pipe_ends: shared would not be used, because parallel.pipe is 1",
        ),
        (
            ["parallel.pipe_ticks=branching"],
            "parallel.pipe_ticks: branching would not be used, because parallel.pipe is 1",
        ),
        (
            ["parallel.pipe=2", "parallel.pipe_ends=shared", "parallel.pipe_ticks=branching"],
            "parallel.pipe_ends: shared needs all pipeline ranks in each loss, and parallel.pipe_ticks: branching lets "
            "each rank do its own; expected last, or uniform ticks",
        ),
        (
            ["model.layers=6", "parallel.pipe=2", "parallel.stage_layers=[2, 3]"],
            "parallel.stage_layers: [2, 3] are 5 layers, and model.layers is 6",
        ),
        (
            ["model.layers=6", "parallel.pipe=2", "parallel.stage_layers=[6, 0]"],
            "parallel.stage_layers: every chunk needs a layer, got [6, 0]",
        ),
        (
            ["model.layers=6", "parallel.pipe=2", "parallel.stage_layers=[]"],
            "parallel.stage_layers: every chunk needs a layer, got []",
        ),
        (
            ["model.layers=6", "parallel.pipe=8"],
            "parallel.pipe x virtual_stages: 8 x 1 chunks are more than the 6 layers of the model (model.layers)",
        ),
        (
            ["model.layers=6", "parallel.pipe=2", "parallel.virtual_stages=4", "parallel.schedule=interleaved"],
            "parallel.pipe x virtual_stages: 2 x 4 chunks are more than the 6 layers of the model (model.layers)",
        ),
        (
            ["model.layers=6", "model.vocab=64", "parallel.pipe=3", "parallel.pipe_ends=shared"],
            "model.vocab (padded to a multiple of 128): 128 is not divisible by parallel.pipe x tensor (3); "
            "expected for "
            "example 126 or 129; change model.vocab_multiple",
        ),
        (
            [
                "model.layers=6",
                "model.vocab_multiple=2",
                "parallel.pipe=2",
                "parallel.tensor=2",
                "parallel.pipe_ends=shared",
            ],
            "model.vocab_multiple: 2 is not divisible by parallel.pipe x tensor (4); expected for example 4",
        ),
        (
            ["parallel.tensor=3"],
            "model.heads: 8 is not divisible by parallel.tensor (3); expected for example 6 or 9",
        ),
        (
            ["model.heads=12", "model.kv_heads=6", "model.embed=384", "parallel.tensor=4"],
            "model.kv_heads: expected a multiple or a divisor of parallel.tensor (4), got 6",
        ),
        (
            ["model.mlp=1022", "parallel.tensor=4"],
            "model.mlp: 1022 is not divisible by parallel.tensor (4); expected for example 1020 or 1024",
        ),
        (
            ["model.vocab=61", "model.vocab_multiple=1", "parallel.tensor=2"],
            "model.vocab (padded to a multiple of 1): 61 is not divisible by parallel.tensor (2); expected for "
            "example 60 or 62; "
            "change model.vocab_multiple",
        ),
        (
            ["model.vocab_multiple=1", "parallel.tensor=2"],
            "model.vocab_multiple: 1 is not divisible by parallel.tensor (2); expected for example 2",
        ),
        (
            ["data.sequence_length=1020", "parallel.context=4", "parallel.tensor=2"],
            "data.sequence_length: 1020 is not divisible by parallel.context x tensor (8); expected for example "
            "1016 or 1024",
        ),
        (
            ["parallel.replica=2", "parallel.fsdp=2", "parallel.expert=2", "parallel.microbatches=2"],
            "data.batch_size: 8 is not divisible by parallel.replica x fsdp x expert x microbatches (16); expected "
            "for example 16",
        ),
        (["parallel.fsdp=-1", "parallel.tensor=-1"], "parallel: only one axis may be -1, and fsdp and tensor are"),
        (
            ["optimizer.decay_steps=50"],
            "optimizer.warmup_steps: 100 is more than optimizer.decay_steps (50)",
        ),
        (
            ["optimizer.schedule=wsd", "optimizer.decay_steps=200", "optimizer.decay_fraction=0.6"],
            "optimizer.decay_fraction: 0.6 of 200 steps begins to fall within the optimizer.warmup_steps (100)",
        ),
        (
            ["distributed.processes=2", "distributed.process_id=2"],
            "distributed.process_id: expected less than distributed.processes (2), got 2",
        ),
        (
            ["distributed.secret_file=''"],
            "distributed.secret_file: expected the path of a file with the job's secret, got an empty text",
        ),
        (
            ["distributed.coordinator=localhost"],
            "distributed.coordinator: expected host:port, got 'localhost'",
        ),
    ],
)
def test_keys_that_do_not_fit_together_are_one_sentence(overrides, sentence):
    assert refusal(*overrides) == sentence


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.kv_heads=2", "parallel.tensor=8"],  # key and value heads are replicated
        ["model.kv_heads=4", "parallel.tensor=2"],
        ["model.head_dim=31", "model.position=learned"],  # only the rotation needs pairs
        ["model.embed=100", "model.head_dim=16"],
        ["parallel.expert=8"],  # for dense weights another data axis
        ["parallel.fsdp=8", "parallel.zero=0"],
        ["parallel.schedule=one-stage"],
        ["model.layers=6", "parallel.pipe=2", "parallel.stage_layers=[1, 5]", "parallel.pipe_ends=shared"],
        ["model.vocab=61", "parallel.tensor=8"],  # padded to 128
        ["run.steps=5"],  # shorter than the default warm-up
        ["data.source=tokens", "data.path=a.npy"],
        ["run.profile=10:15"],
        ["distributed.processes=2", "distributed.process_id=1", "distributed.coordinator=10.0.0.1:1234"],
    ],
)
def test_what_is_unusual_but_right_is_let_through(overrides):
    validate(load_config(None, overrides))


def test_a_free_axis_is_checked_once_its_size_is_known():
    config = load_config(None, ["parallel.tensor=-1", "data.batch_size=3"])
    validate(config)
    with refused("model.heads: 8", "not divisible by parallel.tensor"):
        validate(replace(config, parallel=resolve_axes(config.parallel, 16)))


def test_each_rule_is_run_once_on_the_way_to_a_plan(monkeypatch: pytest.MonkeyPatch):
    ran: Counter[str] = Counter()

    def counted(rule: Callable[[Config], None]) -> Callable[[Config], None]:
        def run(config: Config) -> None:
            ran[rule.__name__] += 1
            rule(config)

        return run

    rules = validate_module._RULES
    monkeypatch.setattr(validate_module, "_RULES", tuple((facts, counted(rule)) for facts, rule in rules))
    Trainer(small(parallel={"fsdp": 8}))
    assert ran == dict.fromkeys((rule.__name__ for _, rule in rules), 1)
    ran.clear()
    Trainer(small(parallel={"fsdp": 2, "tensor": -1}, model={"vocab": None}))
    learnt = {"tensor": 1, "vocab": 1}
    assert ran == {rule.__name__: 1 + sum(learnt.get(fact, 0) for fact in facts) for facts, rule in rules}


def test_the_known_axes_are_checked_beside_a_free_one():
    assert "is not divisible by parallel.replica x fsdp" in refusal("parallel.fsdp=-1", "parallel.replica=3")


def test_a_configuration_built_in_python_is_checked_for_types_too():
    config = Config()
    with refused("model.layers", "a whole number", "'four'"):
        validate(replace(config, model=replace(config.model, layers="four")))  # pyright: ignore[reportArgumentType]


def test_the_steps_of_a_profile_are_read():
    assert profile_steps("10:15") == (10, 15)
    assert profile_steps("3:3") == (3, 3)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["optimizer.muon_momentum=0.9"],
            "optimizer.muon_momentum: 0.9 would not be used, because optimizer.name is adamw; expected optimizer.name: "
            "muon with it, or the default, 0.95",
        ),
        (
            ["optimizer.name=muon", "optimizer.lion_beta1=0.8"],
            "optimizer.lion_beta1: 0.8 would not be used, because optimizer.name is muon; expected optimizer.name: "
            "lion with it, or the default, 0.9",
        ),
        (
            ["optimizer.adafactor_relative=true"],
            "optimizer.adafactor_relative: true would not be used, because optimizer.name is adamw; expected "
            "optimizer.name: adafactor with it, or the default, false",
        ),
        (
            ["attention.backend=triton", "attention.kv_block=256"],
            "attention.kv_block: 256 would not be used, because attention.backend is triton; expected "
            "attention.backend: xla with it, or the default, 512",
        ),
        (
            ["precision.loss_scale_interval=10"],
            "precision.loss_scale_interval: 10 would not be used, because precision.compute is bfloat16; expected "
            "precision.compute: float16 with it, or the default, 1000",
        ),
    ],
)
def test_a_setting_that_is_ignored_is_one_sentence(overrides, sentence):
    assert refusal(*overrides) == sentence


@pytest.mark.parametrize(
    "overrides",
    [
        ["optimizer.name=muon", "optimizer.muon_momentum=0.9"],
        ["attention.backend=xla", "attention.kv_block=256"],
        ["attention.query_block=256"],
        ["precision.compute=float16", "precision.loss_scale=1024"],
        ["optimizer.muon_momentum=0.95"],
    ],
)
def test_a_setting_that_is_used_or_has_its_default_passes(overrides):
    validate(load_config(None, overrides))


def test_an_override_may_make_settings_of_a_file_idle_and_says_so(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("optimizer:\n  name: muon\n  muon_momentum: 0.9\n")
    said = r"^optimizer\.muon_momentum: 0\.9 is not used under the override optimizer\.name=adamw$"
    with pytest.warns(UserWarning, match=said):
        config = load_config(file, ["optimizer.name=adamw"])
    validate(config)
    assert config.optimizer.muon_momentum == 0.95
    with pytest.warns(UserWarning, match=r"is not used under the override optimizer\.name=lion"):
        validate(with_overrides(load_config(file), ["optimizer.name=lion"]))
    file.write_text("optimizer:\n  muon_momentum: 0.9\n")
    with pytest.raises(UserError, match=r"optimizer\.muon_momentum: 0\.9 would not be used"):
        validate(load_config(file))

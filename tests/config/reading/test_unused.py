"""Settings that another one leaves without effect are refused, and those of a file reported under an override."""

import pytest

from jaxpar.config import load_config
from jaxpar.config.reading.overrides import with_overrides
from jaxpar.layout.checks.validate import validate
from tests.sentences import refusals, refused


@refusals("""
    optimizer.options.momentum=0.9 => optimizer.options.momentum: 0.9 | optimizer.name is adamw | optimizer.name: muon
    optimizer.name=lion | optimizer.matrix_learning_rate=0.8 => optimizer.matrix_learning_rate: 0.8 |
        optimizer.name is lion | optimizer.name: muon | 0.02
    optimizer.options={relative: true} => optimizer.options.relative: true | optimizer.name is adamw |
        optimizer.name: adafactor
    attention.backend=triton | attention.kv_block=256 => attention.kv_block: 256 | attention.backend is triton |
        attention.backend: xla | null
    optimizer.name=adafactor | optimizer.options.epsilon=0.001 => optimizer.options.epsilon: 0.001 |
        optimizer.name: adamw or muon
    optimizer.name=adafactor | optimizer.options.beta2=0.98 => optimizer.options.beta2: 0.98 |
        optimizer.name: adamw, muon or lion
    precision.matmul=fp8_current | precision.matmul_options.history=8 => precision.matmul_options.history: 8 |
        precision.matmul: fp8_delayed
    precision.matmul=fp8_current | precision.matmul_options.backend=cudnn => precision.matmul_options.backend: cudnn |
        matmul: fp8_block or mxfp8
    optimizer.decay_fraction=0.5 => optimizer.decay_fraction: 0.5 | optimizer.schedule: wsd
    optimizer.schedule=constant | optimizer.final_fraction=0.5 => optimizer.final_fraction: 0.5 |
        optimizer.schedule: cosine, linear or wsd
    watch.max_rollbacks=5 => watch.max_rollbacks: 5 | watch.on_spike: rollback
""")
def test_a_setting_that_is_ignored_is_one_sentence(overrides, parts):
    with refused("would not be used", *parts):
        validate(load_config(None, overrides))


@pytest.mark.parametrize(
    "overrides",
    [
        ["optimizer.name=muon", "optimizer.options.beta2=0.9"],
        ["optimizer.name=muon", "optimizer.options.momentum=0.9"],
        ["attention.backend=xla", "attention.kv_block=256"],
        ["attention.query_block=256"],
        ["optimizer.matrix_learning_rate=0.02"],
    ],
)
def test_a_setting_that_is_used_or_has_its_default_passes(overrides):
    validate(load_config(None, overrides))


def test_an_override_may_make_settings_of_a_file_idle_and_reports_it(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("optimizer:\n  name: muon\n  matrix_learning_rate: 0.9\n")
    expected = r"^optimizer\.matrix_learning_rate: 0\.9 is not used under the override optimizer\.name=adamw$"
    with pytest.warns(UserWarning, match=expected):
        config = load_config(file, ["optimizer.name=adamw"])
    validate(config)
    assert config.optimizer.matrix_learning_rate == 0.02
    with pytest.warns(UserWarning, match=r"optimizer\.matrix_learning_rate.*optimizer\.name=lion"):
        validate(with_overrides(load_config(file), ["optimizer.name=lion"]))
    file.write_text("optimizer:\n  matrix_learning_rate: 0.9\n")
    with refused("optimizer.matrix_learning_rate", "0.9", "optimizer.name is adamw", "muon", "0.02"):
        validate(load_config(file))


@pytest.mark.parametrize(
    ("name", "left", "gone"),
    [
        ("muon", {"momentum": 0.9, "beta1": 0.8}, ()),
        ("adamw", {"beta1": 0.8}, ("momentum",)),
        ("lion", {}, ("momentum", "beta1")),
    ],
)
def test_an_override_of_the_optimizer_keeps_the_options_that_mean_the_same(tmp_path, recwarn, name, left, gone):
    """AdamW's beta1 is also Muon's, for embeddings and head; Lion's is another."""
    file = tmp_path / "run.yaml"
    file.write_text("optimizer: {name: muon, options: {momentum: 0.9, beta1: 0.8}}\n")
    for config in (
        load_config(file, [f"optimizer.name={name}"]),
        with_overrides(load_config(file), [f"optimizer.name={name}"]),
    ):
        validate(config)
        assert config.optimizer.options == left
        warned = [str(recwarn.pop(UserWarning).message) for _ in gone]
        assert all(f"optimizer.options.{key}:" in line for key, line in zip(gone, warned, strict=True))
    assert not len(recwarn)
    both = ["optimizer.name=lion", "optimizer.options.beta1=0.7"]
    with pytest.warns(UserWarning, match=r"optimizer\.options\.momentum"):
        assert load_config(file, both).optimizer.options == {"beta1": 0.7}


@pytest.mark.parametrize("value", [0.9, 0.95])
def test_an_option_that_the_optimizer_of_a_file_never_had_is_refused_as_it_was_written(tmp_path, value):
    file = tmp_path / "config.yaml"
    file.write_text(f"optimizer: {{name: adamw, options: {{momentum: {value}}}}}")
    for overrides, name in (([], "adamw"), (["optimizer.name=lion"], "lion")):
        with refused("optimizer.options.momentum", f"{value} would not be used", name, "muon"):
            validate(load_config(file, overrides))
    assert load_config(file, ["optimizer.name=muon"]).optimizer.options == {"momentum": value}


@pytest.mark.parametrize(
    ("member", "recipes", "usual"),
    [("history: 8", ("fp8_delayed", "fp8_current"), 16), ("backend: cudnn", ("mxfp8", "fp8_delayed"), "auto")],
)
def test_an_override_of_the_recipe_resets_the_options_of_another(tmp_path, member, recipes, usual):
    file, (before, now), key = tmp_path / "run.yaml", recipes, member.partition(":")[0]
    file.write_text(f"precision: {{matmul: {before}, matmul_options: {{{member}, last_layers: 0}}}}\n")
    with pytest.warns(UserWarning, match=rf"precision\.matmul_options\.{key}: .*override precision\.matmul={now}$"):
        options = load_config(file, [f"precision.matmul={now}"]).precision.matmul_options
    assert getattr(options, key) == usual and options.last_layers == 0


def test_a_rollback_needs_saves_by_steps_or_by_the_clock():
    rollback = "watch.on_spike=rollback"
    validate(load_config(None, [rollback]))
    validate(load_config(None, [rollback, "checkpoint.every_minutes=0", "checkpoint.every=10"]))
    with refused("watch.on_spike", "checkpoint.every", "checkpoint.every_minutes"):
        validate(load_config(None, [rollback, "checkpoint.every_minutes=0"]))

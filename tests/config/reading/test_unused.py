"""Settings that another one leaves without effect are refused, and those of a file reported under an override."""

from __future__ import annotations

import pytest

from jaxpar.config import load_config
from jaxpar.config.reading.overrides import with_overrides
from jaxpar.layers.checks import validate
from tests.sentences import refused


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (
            ["optimizer.muon_momentum=0.9"],
            ("optimizer.muon_momentum: 0.9", "optimizer.name is adamw", "optimizer.name: muon", "0.95"),
        ),
        (
            ["optimizer.name=muon", "optimizer.lion_beta1=0.8"],
            ("optimizer.lion_beta1: 0.8", "optimizer.name is muon", "optimizer.name: lion", "0.9"),
        ),
        (
            ["optimizer.adafactor_relative=true"],
            ("optimizer.adafactor_relative: true", "optimizer.name is adamw", "optimizer.name: adafactor", "false"),
        ),
        (
            ["attention.backend=triton", "attention.kv_block=256"],
            ("attention.kv_block: 256", "attention.backend is triton", "attention.backend: xla", "null"),
        ),
    ],
)
def test_a_setting_that_is_ignored_is_one_sentence(overrides, parts):
    with refused(*parts):
        validate(load_config(None, overrides))


@pytest.mark.parametrize(
    ("overrides", "needed"),
    [
        (["optimizer.name=lion", "optimizer.beta2=0.98"], "optimizer.name: adamw or muon"),
        (["optimizer.name=adafactor", "optimizer.epsilon=0.001"], "optimizer.name: adamw or muon"),
        (["optimizer.decay_fraction=0.5"], "optimizer.schedule: wsd"),
        (["optimizer.schedule=constant", "optimizer.final_fraction=0.5"], "optimizer.schedule: cosine, linear or wsd"),
        (["evaluation.sample_temperature=0.5"], "evaluation.sample_tokens: above 0"),
        (["watch.max_rollbacks=5"], "watch.on_spike: rollback"),
    ],
)
def test_a_setting_that_another_one_switches_off_is_refused(overrides, needed):
    with refused(overrides[-1].replace("=", ": "), "would not be used", needed):
        validate(load_config(None, overrides))


@pytest.mark.parametrize(
    "overrides",
    [
        ["optimizer.name=muon", "optimizer.beta2=0.9"],
        ["evaluation.sample_tokens=8", "evaluation.sample_temperature=0"],
        ["optimizer.name=muon", "optimizer.muon_momentum=0.9"],
        ["attention.backend=xla", "attention.kv_block=256"],
        ["attention.query_block=256"],
        ["optimizer.muon_momentum=0.95"],
    ],
)
def test_a_setting_that_is_used_or_has_its_default_passes(overrides):
    validate(load_config(None, overrides))


def test_an_override_may_make_settings_of_a_file_idle_and_reports_it(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("optimizer:\n  name: muon\n  muon_momentum: 0.9\n")
    expected = r"^optimizer\.muon_momentum: 0\.9 is not used under the override optimizer\.name=adamw$"
    with pytest.warns(UserWarning, match=expected):
        config = load_config(file, ["optimizer.name=adamw"])
    validate(config)
    assert config.optimizer.muon_momentum == 0.95
    with pytest.warns(UserWarning, match=r"optimizer\.muon_momentum.*optimizer\.name=lion"):
        validate(with_overrides(load_config(file), ["optimizer.name=lion"]))
    file.write_text("optimizer:\n  muon_momentum: 0.9\n")
    with refused("optimizer.muon_momentum", "0.9", "optimizer.name is adamw", "muon", "0.95"):
        validate(load_config(file))


def test_a_rollback_needs_saves_by_steps_or_by_the_clock():
    rollback = "watch.on_spike=rollback"
    validate(load_config(None, [rollback]))
    validate(load_config(None, [rollback, "checkpoint.every_minutes=0", "checkpoint.every=10"]))
    with refused("watch.on_spike", "checkpoint.every", "checkpoint.every_minutes"):
        validate(load_config(None, [rollback, "checkpoint.every_minutes=0"]))

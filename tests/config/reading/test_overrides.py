"""`section.key=value` on the command line, and on a configuration that exists."""

from dataclasses import replace
from pathlib import Path

from jaxpar.checkpoint.facts import saved_config
from jaxpar.config import Config, load_config, with_overrides
from jaxpar.config.kinds import kind_model
from jaxpar.config.presets import PRESETS
from jaxpar.config.validate import validate
from tests.sentences import refusals, refused


def test_a_value_is_read_as_yaml():
    config = load_config(
        None,
        ["optimizer.learning_rate=1e-3", "model.tied=true", "model.window=null", "run.profile=10:15", "model.layers=2"],
    )
    assert (config.optimizer.learning_rate, config.model.tied, config.model.window) == (1e-3, True, None)
    assert (config.run.profile, config.model.layers) == ("10:15", 2)


def test_text_needs_no_quotes_even_when_it_looks_like_a_number():
    assert load_config(None, ["run.name=2024"]).run.name == "2024"
    assert load_config(None, ["run.name=1e-3", "data.path=true"]).data.path == "true"
    assert load_config(None, ["data.path=null"]).data.path is None
    assert load_config(None, ["run.name=a=b"]).run.name == "a=b"
    assert load_config(None, ["run.steps=1", "run.steps=2"]).run.steps == 2, "the last counts"


@refusals("""
    model.layers => an override is written section.key=value
    model=3 => an override is written section.key=value
    model.layrs=3 => model.layrs: no such key; did you mean layers?
    paralel.fsdp=2 => paralel: no such section; did you mean parallel?
    run.steps=[1 => is not valid YAML
""")
def test_a_mistake_is_one_sentence(overrides: list[str], parts: tuple[str, ...]):
    with refused(*parts):
        load_config(None, overrides)


def test_overrides_of_a_configuration_leave_the_rest_alone():
    config = load_config(None, ["run.steps=5", "model.layers=3"])
    changed = with_overrides(config, ["model.embed=64"])
    assert changed == replace(config, model=replace(config.model, embed=64))
    assert with_overrides(config, []) == config


def test_a_preset_over_a_configuration_replaces_the_model():
    config = load_config(None, ["model.preset=llama3-8b", "model.layers=3"])
    changed = with_overrides(config, ["model.window=8", "model.preset=gpt2-124m"])
    assert changed.model == replace(PRESETS["gpt2-124m"], window=8)
    assert with_overrides(config, ["model.preset=null"]).model == Config().model


def test_keys_of_a_section_within_a_section_are_set_one_by_one(tmp_path: Path):
    file = tmp_path / "run.yaml"
    file.write_text("model: {preset: llama3-1b, rope: {base: 1e6}}")
    rope = replace(PRESETS["llama3-1b"].rope, base=1e6)
    assert load_config(file).model.rope == rope
    overrides = ["model.rope.factor=4", "model.rope={low_frequency: 2}", "model.rope.factor=16"]
    wanted = replace(rope, low_frequency=2.0, factor=16.0)
    assert load_config(file, overrides).model.rope == with_overrides(load_config(file), overrides).model.rope == wanted
    kinds = ["model.kinds={local: {rope: {factor: 2}}, global: {}}", "model.pattern={unit: [local, global]}"]
    model = load_config(file, kinds).model
    assert kind_model(model, "local").rope == replace(rope, factor=2.0) and kind_model(model, "global").rope == rope


@refusals("""
    model.rope.bas=1 => model.rope: | 'bas' | did you mean base?
    model.rope.base=x => model.rope.base: | a number | 'x'
    model.rope=1 => model.rope: | a mapping
    model.rope_scaling=yarn => model.rope_scaling: | did you mean model.rope.scaling?
    model.kinds={a: {rope_base: 1}} => model.kinds.a.rope_base: | did you mean rope.base?
    model.kinds={a: {rope: {base: 0}}} => model.kinds.a.rope.base: | above 0 | got 0
    model.kinds={a: {rope: 1}} => model.kinds.a.rope: | a mapping
""")
def test_a_mistake_inside_or_a_name_of_before_is_one_sentence(overrides: list[str], parts: tuple[str, ...]):
    with refused(*parts):
        validate(load_config(None, [*overrides, "model.pattern={unit: [a]}"] if "kinds" in overrides[0] else overrides))


def test_a_checkpoint_of_before_is_refused_with_the_new_name():
    with refused("run/00000004: model.rope_base:", "did you mean model.rope.base?"):
        saved_config({"config": {"model": {"rope_base": 1e4, "layers": 2}}}, Path("run/00000004"))

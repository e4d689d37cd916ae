"""A file and overrides become a configuration, or one sentence that states what to put right."""

from dataclasses import replace

import pytest

from jaxpar.config import Config, config_to_yaml, load_config
from jaxpar.config.presets import PRESETS
from tests.sentences import refused


@pytest.fixture
def write(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "run.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_an_empty_file_and_an_empty_section_are_the_defaults(write):
    assert load_config(write("")) == load_config(write("model:\nrun: {}\n")) == Config()


def test_the_file_of_a_run_from_before_there_was_a_secret_loads(write):
    kept = [line for line in config_to_yaml(Config()).splitlines() if "secret_file" not in line]
    assert load_config(write("\n".join(kept))) == Config()


def test_a_value_of_the_file_replaces_the_default_and_an_override_replaces_both(write):
    path = write("run: {steps: 7, seed: 3}\noptimizer: {learning_rate: 1e-3}\n")
    config = load_config(path, ["run.steps=9"])
    assert (config.run.steps, config.run.seed, config.optimizer.learning_rate) == (9, 3, 1e-3)


def test_a_preset_fills_the_model_and_fields_beside_it_win(write):
    path = write("model: {layers: 2, preset: llama3-8b}\n")
    config = load_config(path, ["model.vocab=256"])
    assert config.model == replace(PRESETS["llama3-8b"], layers=2, vocab=256)


def test_an_override_names_the_preset_and_the_fields_of_the_file_win_over_it(write):
    assert load_config(None, ["model.preset=qwen3-8b"]).model == PRESETS["qwen3-8b"]
    path = write("model: {preset: llama3-8b, layers: 2}\n")
    assert load_config(path, ["model.preset=gpt2-124m"]).model == replace(PRESETS["gpt2-124m"], layers=2)
    assert load_config(path, ["model.preset=null"]).model.embed == Config().model.embed


def test_another_preset_over_a_resolved_file_is_refused_because_it_would_change_nothing(write):
    path = write(config_to_yaml(load_config(None, ["model.preset=llama3-8b"])))
    assert load_config(path, ["model.preset=llama3-8b"]).model == PRESETS["llama3-8b"]
    with refused("model.preset=gpt2-124m", "would change nothing"):
        load_config(path, ["model.preset=gpt2-124m"])


def test_an_int_is_accepted_for_a_float_and_becomes_one():
    value = load_config(None, ["optimizer.learning_rate=1"]).optimizer.learning_rate
    assert value == 1.0 and type(value) is float


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("\nmodel:\n  layrs: 3", (":3: model.layrs:", "no such key", " layers?")),
        ("modle: {layers: 3}", (":1: modle:", "no such section", " model?")),
        ("layers: 3", (":1: layers:", "no such section", " model.layers?")),
        ("model: {sequence_length: 3}", (":1: model.sequence_length:", "no such key", " data.sequence_length?")),
        ("model:\n  norm: rmsnrom", (":2: model.norm:", "rmsnorm", "got 'rmsnrom'", " rmsnorm?")),
        ("model:\n  preset: llama-8b", (":2: model.preset:", "'llama-8b'", " llama3-8b?")),
        ("model:\n  kinds:\n    global:", (":2: model.kinds.global:", "a mapping", "got null", " {}?")),
        ("model: {layers: true}", (":1: model.layers:", "a whole number", "got true")),
        ("model: {layers: 4.0}", (":1: model.layers:", "a whole number", "got 4.0")),
        ("model: {layers: '4'}", (":1: model.layers:", "a whole number", "got '4'")),
        ("model: {layers: null}", (":1: model.layers:", "a whole number", "got null")),
        ("model: {layers: [4]}", (":1: model.layers:", "a whole number", "got [4]")),
        ("model: {tied: 1}", (":1: model.tied:", "true or false", "got 1")),
        ("model: {dropout: true}", (":1: model.dropout:", "a number", "got true")),
        ("model: {dropout: 1e999}", (":1: model.dropout:", "a number", "got inf")),
        ("model: {kv_heads: None}", (":1: model.kv_heads:", "a whole number or null", "got 'None'", " null?")),
        ("run: {name: 2024}", (":1: run.name:", "text", "got 2024")),
        ("parallel: {zero: 4}", (":1: parallel.zero:", "0, 1, 2 or 3", "got 4")),
        ("parallel: {zero: true}", (":1: parallel.zero:", "0, 1, 2 or 3", "got true")),
        ("run: 5", (":1: run:", "a mapping of keys", "got 5")),
    ],
)
def test_a_mistake_in_a_file_names_the_line_the_key_and_the_nearest_right_one(write, text, parts):
    path = write(text)
    with refused(f"{path}{parts[0]}", *parts[1:]):
        load_config(path)


def test_a_missing_file_is_named_with_the_one_it_resembles(write, tmp_path):
    write("")
    with refused("rum.yaml", "no such file", "run.yaml?"):
        load_config(tmp_path / "rum.yaml")


def test_a_folder_and_a_binary_file_cannot_be_read(tmp_path):
    with refused(str(tmp_path), "cannot be read", "Is a directory"):
        load_config(tmp_path)
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe\x00\x01")
    with refused("a.yaml", "UTF-8"):
        load_config(tmp_path / "a.yaml")

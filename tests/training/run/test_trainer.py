"""`Trainer` in a program: a run from its checkpoint, its weights by name, and text from it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config import Config
from jaxpar.config.schema.model import Pattern
from jaxpar.convert import main
from jaxpar.generation.generator import Generator
from jaxpar.interop.sources.open_source import open_source
from jaxpar.training.named_weights import NamedWeights
from jaxpar.training.run.trainer import Trainer
from tests.data.folders import prepared, texts
from tests.goldens.loading import FOLDER
from tests.same_bits import assert_same_bits
from tests.sentences import refused
from tests.training.runs import (
    Recorder,
    SharingTrainer,
    fit,
    folder_of,
    losses,
    make_run,
    make_trainer,
    run_config,
    saved_state,
)


def config_of(to: Path, steps: int, **sections: Any) -> Config:
    model = {"layers": 2, "vocab": 61, **sections.pop("model", {})}
    return run_config(to, steps, model=model, checkpoint={"every": 2, "keep_last": 9}, **sections)


@pytest.mark.long
def test_a_run_goes_on_from_each_of_its_checkpoints(tmp_path: Path):
    """With the same steps as if it had never stopped, on another layout too; then `fit` in its own folder."""
    config = config_of(tmp_path, 4, parallel={"fsdp": 2})
    fit(config)
    devices = jax.devices()[:2]
    trainer = SharingTrainer.from_checkpoint(folder_of(config) / "checkpoints/00000002", devices=devices)
    assert (trainer.steps_done, trainer.config.run.dir) == (2, str(tmp_path))
    found = [float(trainer.step().loss) for _ in range(2)]
    assert found == [losses(config)[step] for step in (3, 4)]
    assert_same_bits(jax.device_get(trainer.state.master), saved_state(config, 4).master)
    with refused("overrides", "model.layers: 2 -> 3", "run.init_from"):
        Trainer.from_checkpoint(folder_of(config), overrides=["model.layers=3"])
    newest = SharingTrainer.from_checkpoint(folder_of(config), devices=devices, overrides=["run.steps=6"])
    assert newest.steps_done == 4 and newest.config.run.steps == 6
    assert newest.fit([]).steps == 6
    assert open_source(folder_of(config), "MODEL").location.name == "00000006"


def test_what_is_no_checkpoint_of_a_run_is_refused(tmp_path: Path):
    with refused("path", str(tmp_path / "no"), "no checkpoint", "run.init_from"):
        Trainer.from_checkpoint(tmp_path / "no")
    with refused("path", "llama", "run.init_from"):
        Trainer.from_checkpoint(FOLDER / "llama")
    assert main(["hf-to-jaxpar", str(FOLDER / "llama"), str(tmp_path / "converted")]) == 0
    with refused("path", "converted", "weights of a model", "run.init_from"):
        Trainer.from_checkpoint(tmp_path / "converted")


def test_weights_have_names_and_the_shapes_of_the_model(tmp_path: Path):
    trainer = make_trainer(config_of(tmp_path, 2, parallel={"fsdp": 2, "tensor": 2}))
    weights = trainer.weights()
    shapes = {name: weights[name].shape for name in weights}
    assert shapes == {
        "embedding.tokens": (61, 32), "final_norm.scale": (32,), "head.weight": (32, 61),
        "layers.all.attention.query": (2, 32, 8, 4), "layers.all.attention.key": (2, 32, 8, 4),
        "layers.all.attention.value": (2, 32, 8, 4), "layers.all.attention.output": (2, 8, 4, 32),
        "layers.all.attention_norm.scale": (2, 32), "layers.all.mlp_norm.scale": (2, 32),
        "layers.all.mlp.gate": (2, 32, 48), "layers.all.mlp.up": (2, 32, 48), "layers.all.mlp.down": (2, 48, 32),
    }  # fmt: skip
    assert {weights[name].dtype for name in weights} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(weights["layers.all.mlp.up"], trainer.state.master["layers"]["all"]["mlp"]["up"])
    check_layers(weights)


def check_layers(weights: NamedWeights) -> None:
    """Each layer of stacked weights alone."""
    for name in (name for name in weights if name.startswith("layers.")):
        for layer, wanted in enumerate(weights[name]):
            np.testing.assert_array_equal(weights.layer(name, layer), wanted)


KINDS: dict[str, Any] = {
    "layers": 6, "kinds": {"local": {"window": 5}, "wide": {"mlp": 64}},
    "pattern": Pattern(unit=("local", "local", "wide")),
}  # fmt: skip


@pytest.mark.long
def test_a_pipeline_has_the_weights_and_the_text_of_one_device(tmp_path: Path):
    """Its stages are uneven and its layers of two kinds; for text its devices are laid out anew."""
    alone = make_trainer(config_of(tmp_path, 2, model=KINDS))
    config = config_of(tmp_path, 2, model=KINDS, parallel={"pipe": 2, "tensor": 2, "stage_layers": (4, 2)})
    split = make_trainer(replace(config, parallel=replace(config.parallel, pipe_ends="shared")))
    assert_same_bits(dict(split.weights()), dict(alone.weights()))
    check_layers(split.weights())
    prompts = [[5, 6, 7], [8] * 11]
    found, wanted = (run.generate(prompts, tokens=5) for run in (split, alone))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_allclose(one.log_probabilities, other.log_probabilities, rtol=1e-5, atol=1e-5)


@pytest.mark.long
def test_text_is_the_generators_and_ends_before_a_stop_string(tmp_path: Path):
    folder = tmp_path / "tokens"
    prepared(folder, texts(40))
    data = {"source": "tokens", "path": str(folder), "validation_path": None}
    trainer = make_trainer(config_of(tmp_path, 2, data=data, model={"vocab": None}, parallel={"fsdp": 2}))
    encode, decode = trainer.data.encode_start, trainer.data.decode
    assert encode is not None and decode is not None
    (one,) = trainer.generate("the way", tokens=12)
    generator = Generator(trainer.config, trainer.mesh, make_run(trainer.config).evaluated_weights())
    (wanted,) = generator.continued([encode("the way")], 12, stop=[trainer.data.separator or 0])
    np.testing.assert_array_equal(one.tokens, wanted.tokens)
    assert one.text == decode(wanted.tokens) and not one.ended
    stop = next(letter for letter in decode(one.tokens) if letter.isprintable())
    cut, again = trainer.generate(["the way", encode("the way")], tokens=12, stop=[stop])
    assert cut.text == again.text == str(one.text)[: str(one.text).index(stop)] and cut.ended


@pytest.mark.parametrize(
    ("prompts", "arguments", "parts"),
    [
        ("text", {}, ("prompts", "data.source=synthetic", "token ids")),
        ([], {}, ("prompts", "none")),
        ([[]], {}, ("prompt 0", "at least one token")),
        ([1, 61], {}, ("prompt 0", "token 61", "61")),
        ([1], {"tokens": 0}, ("tokens", "at least 1", "got 0")),
        ([1], {"top_p": 2.0}, ("top_p", "at most 1", "2.0")),
        ([1], {"stop": ["a"]}, ("stop", "data.source=synthetic")),
        ([1], {"stop": "a"}, ("stop", "list of texts", "'a'")),
    ],
)
def test_a_bad_argument_is_one_sentence(prompts: Any, arguments: dict[str, Any], parts: tuple[str, ...]):
    with refused(*parts):
        _any_trainer().generate(prompts, **arguments)


def _any_trainer() -> Trainer:
    return make_trainer(config_of(Path("unused"), 2))


def test_a_trainer_saves_what_fit_and_from_checkpoint_go_on_from(tmp_path: Path):
    whole = config_of(tmp_path / "whole", 4)
    summary, _ = fit(whole)
    config = config_of(tmp_path / "by-hand", 4)
    trainer = make_trainer(config)
    with refused("save", "a step first"):
        trainer.save()
    trainer.step()
    trainer.step()
    assert trainer.save() == folder_of(config) / "checkpoints/00000002"
    assert_same_bits(saved_state(config, 2), saved_state(whole, 2))
    with refused("run.name", "step 2", "Trainer.from_checkpoint"):
        trainer.save()
    again = SharingTrainer.from_checkpoint(folder_of(config), devices=jax.devices()[:1])
    assert again.steps_done == 2
    again.step()
    assert again.save().name == "00000003"
    ended = make_trainer(config).fit([])
    assert (ended.tokens, ended.loss) == (summary.tokens, summary.loss)
    assert_same_bits(saved_state(config, 4), saved_state(whole, 4))


def test_steps_that_fit_discards_are_reported(tmp_path: Path):
    """It continues from the newest checkpoint; the steps before it, taken by hand, have no records to lose."""
    trainer = make_trainer(config_of(tmp_path, 3))
    trainer.step()
    trainer.save()
    trainer.step()
    trainer.fit([recorded := Recorder()])
    assert [text for text in recorded.messages if "checkpoint of step 1, without the 1 later step" in text]
    (records,) = [text for text in recorded.messages if "metrics.jsonl" in text]
    assert "Trainer.step" in records and "empty" not in records

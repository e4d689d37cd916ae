"""A run with low-rank factors saves these alone; it is read merged with its model, and exported in PEFT's format."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.checkpoint import Checkpointer
from jaxpar.config import Config, LoraConfig, config_to_dict
from jaxpar.config.kinds import layer_kinds
from jaxpar.convert import main
from jaxpar.evaluation.context_length import context_length
from jaxpar.interop.mapping.family import tensors_of
from jaxpar.interop.sources.adapted import AdaptedWeights, base_facts
from jaxpar.interop.sources.hf_folder import HFFolder
from jaxpar.interop.sources.open_source import open_source
from jaxpar.layout.state import all_weights
from jaxpar.mesh.layer_order import LayerOrder
from jaxpar.mesh.parameters import map_specs, select
from jaxpar.model.decoder import decoder_specs
from jaxpar.observe.writers.jsonl import JsonLines
from jaxpar.training.run.reference import initial_state_from
from tests.goldens.loading import DENSE, FOLDER, WITH_PEFT, tokens_and_logits
from tests.interop.folders import copy_of, rewrite, tensors
from tests.model.test_goldens import logits
from tests.reference.decoder64 import plain_batch
from tests.same_bits import assert_same_bits
from tests.sentences import refused, refused_by_command
from tests.small_run import SmallRun, small
from tests.training.run.test_init_from import model_of
from tests.training.runs import fit, folder_of, losses, make_run, run_config, saved_state

LORA = LoraConfig(rank=3, alpha=6.0)


def save_factors(base: Path, to: Path, lora: LoraConfig = LORA) -> Any:
    """A checkpoint at `to` with drawn factors for the model of a folder; returns the factors."""
    source, draws = HFFolder(base), np.random.default_rng(7)
    config = replace(small(run={"init_from": str(base)}), model=source.model, lora=lora)
    specs = decoder_specs(config, LayerOrder.from_kinds([0], [layer_kinds(source.model)]))
    factors = select(specs, map_specs(lambda spec: spec.trained, specs), True)
    factors = map_specs(lambda spec: jnp.asarray(0.1 * draws.standard_normal(spec.shape), jnp.float32), factors)
    to.mkdir(parents=True, exist_ok=True)
    checkpointer = Checkpointer(to / "checkpoints", keep_last=1, keep_every=None, report=print)
    try:
        state = {"master": factors, "step": jnp.int32(1)}
        checkpointer.save(1, state, {"config": config_to_dict(config), **base_facts(source)})
    finally:
        checkpointer.close()
    return factors


def test_the_context_the_step_and_the_folder_are_those_of_the_run_and_not_of_its_base(tmp_path: Path):
    save_factors(FOLDER / "llama", tmp_path / "run")
    source = open_source(tmp_path / "run", "MODEL")
    assert isinstance(source, AdaptedWeights) and (source.step, source.run_folder) == (1, None), "no run's folder yet"
    (tmp_path / "run/config.yaml").write_text("")
    assert source.run_folder == tmp_path / "run"
    assert context_length(source, None) == small().data.sequence_length != context_length(source.base, None)


def by_peft(name: str) -> tuple[np.ndarray, str]:
    """Logits that PEFT computes of the exported factors, and the digest of their file; see `goldens/generate_peft`."""
    with np.load(FOLDER / "peft" / f"{name}.npz", allow_pickle=False) as stored:
        return stored["logits"], str(stored["adapter"])


TARGETS = {"gpt2": ("query", "value", "output"), "gemma2": ("key", "down")}
"""Where not all matrices have factors: two of three in one tensor, and one of two tensors of a name."""


def layouts(name: str) -> set[tuple[object, ...]]:
    """How the matrices of a golden's layers lie in tensors: the form, the number in one, and their order there."""
    source = HFFolder(FOLDER / name)
    return {
        (type(laid := tensor.laid), laid.form, len(tensor.weights), laid.interleaved, bool(getattr(laid, "rotary", 0)))
        for tensor in tensors_of(source.family, source.model)
        if tensor.layer is not None and tensor.laid.specs[0].inputs
    }


def test_every_layout_of_the_dense_goldens_has_logits_of_peft():
    assert set(WITH_PEFT) <= set(DENSE)
    assert set().union(*map(layouts, DENSE)) == set().union(*map(layouts, WITH_PEFT))


OTHERS = {"qwen3_5": ("query", "value"), "qwen3_next": None, "mamba2": None, "mixtral": None}
OTHERS |= {"qwen3_moe": ("query", "down"), "gpt_oss": ("query", "output")}
"""Models whose adapters PEFT did not compute, with their targets: queries and their gates by head, projections of
Mamba-2 beside one without factors, and experts."""


def test_an_adapter_of_experts_that_are_one_tensor_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    save_factors(FOLDER / "gpt_oss", tmp_path / "run")
    capfd.readouterr()
    status = main(["jaxpar-to-hf", str(tmp_path / "run"), str(tmp_path / "peft"), "--adapter"])
    refused_by_command(status, *capfd.readouterr(), "--adapter", "experts.gate_up_proj", "lora.targets")


@pytest.mark.matrix(quick=("gpt2", "gemma2", "phi3", "qwen3_5", "mixtral", "qwen3_moe", "gpt_oss"), ci=4)
@pytest.mark.parametrize("name", [*WITH_PEFT, *OTHERS])
def test_an_adapter_in_pefts_format_makes_the_merged_tensors(name: str, tmp_path: Path):
    """As PEFT does: W + alpha / rank * B A, with the patterns of both, in a Conv1D transposed."""
    save_factors(FOLDER / name, tmp_path / "run", replace(LORA, targets=(TARGETS | OTHERS).get(name)))
    assert main(["jaxpar-to-hf", str(tmp_path / "run"), str(tmp_path / "merged"), "--dtype", "float32"]) == 0
    assert main(["jaxpar-to-hf", str(tmp_path / "run"), str(tmp_path / "peft"), "--adapter"]) == 0
    config = json.loads((tmp_path / "peft/adapter_config.json").read_text())
    assert config["peft_type"] == "LORA" and config["base_model_name_or_path"] == str(FOLDER / name)
    before, merged = tensors(FOLDER / name), tensors(tmp_path / "merged")
    factors = tensors(tmp_path / "peft/adapter_model.safetensors")
    before = {key: weight.astype(np.float32) for key, weight in before.items()}
    assert before.keys() == merged.keys()
    changed = 0
    for key, weight in before.items():
        module = key.removesuffix(".weight")
        ends = [end for end in config["target_modules"] if module.endswith(f".{end}")]
        a = factors.pop(f"base_model.model.{module}.lora_A.weight", None)
        assert (a is not None) == bool(ends), f"{module}: what target_modules names has factors"
        if a is None:
            np.testing.assert_array_equal(merged[key], weight)
            continue
        b = factors.pop(f"base_model.model.{module}.lora_B.weight")
        rank = config["rank_pattern"].get(ends[0], config["r"])
        shape = weight.shape[::-1] if config["fan_in_fan_out"] else weight.shape
        assert (b.shape, a.shape) == ((shape[0], rank), (rank, shape[1]))
        product = config["alpha_pattern"].get(ends[0], config["lora_alpha"]) / rank * (b @ a)
        wanted = weight + (product.T if config["fan_in_fan_out"] else product)
        assert np.abs(merged[key] - wanted).max() <= 1e-6 * np.abs(wanted).max()
        changed += 1
    assert changed and not factors
    if name in WITH_PEFT:
        exported = tmp_path / "peft/adapter_model.safetensors"
        assert hashlib.sha256(exported.read_bytes()).hexdigest() == by_peft(name)[1], "PEFT computed with these"
    if name in ("mixtral", "qwen3_moe", "gpt_oss"):
        ends = set(config["target_modules"])
        assert not {"gate", "router"} & ends
        assert ("w2" in ends) == (name == "mixtral") and ("down_proj" in ends) == (name == "qwen3_moe")


@pytest.mark.matrix(quick=(), ci=2)
@pytest.mark.parametrize("name", WITH_PEFT)
def test_merged_weights_and_peft_have_the_logits_of_the_factors(name: str, tmp_path: Path):
    tokens, _ = tokens_and_logits(name)
    lora = replace(LORA, targets=TARGETS.get(name))
    factors = save_factors(FOLDER / name, tmp_path, lora)
    data = {"batch_size": tokens.shape[0], "sequence_length": tokens.shape[1]}
    plain = small(model=model_of(FOLDER / name), data=data, run={"init_from": str(FOLDER / name)})
    found = []
    for config, source in (
        (replace(plain, lora=lora), HFFolder(FOLDER / name)),
        (plain, open_source(tmp_path, "MODEL")),
    ):
        run = SmallRun(config)
        state = initial_state_from(source, run.step.residency.initial_state(), run.step.residency)
        state = state._replace(master=factors) if config.lora.rank else state
        found.append(np.asarray(logits(run.step)(all_weights(state), run.place(plain_batch(tokens)))))
    adapted, merged = (values[..., : HFFolder(FOLDER / name).model.vocab] for values in found)
    assert np.abs(adapted - merged).max() <= 1e-5 * np.abs(adapted).max()
    assert np.abs(adapted - by_peft(name)[0]).max() <= 1e-5 * np.abs(adapted).max()
    _, before = tokens_and_logits(name)
    assert np.abs(adapted - before).max() > 1e-2 * np.abs(before).max(), "the factors count"


def test_factors_for_other_weights_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    base = copy_of("llama", tmp_path / "base")
    save_factors(base, tmp_path / "run")
    own = tensors(base)["model.norm.weight"]
    rewrite(base, {"model.norm.weight": own + 1})
    with refused("factors", str(base), "expected the same"):
        open_source(tmp_path / "run", "MODEL")
    status = main(["jaxpar-to-hf", str(base), str(tmp_path / "out"), "--adapter"])
    refused_by_command(status, *capfd.readouterr(), "--adapter", str(base), "lora.rank")
    assert not (tmp_path / "out").exists()


def run_of(to: Path, steps: int, **sections: Any) -> Config:
    """A run with factors for the golden `llama`, on two devices."""
    base = {"model": model_of(FOLDER / "llama"), "parallel": {"fsdp": 2}, "run": {"init_from": str(FOLDER / "llama")}}
    return replace(run_config(to, steps, **base, **sections), lora=LORA)


@pytest.mark.long
def test_a_run_saves_its_factors_alone_and_goes_on(tmp_path: Path):
    whole, cut = (run_of(tmp_path / name, 4) for name in ("whole", "cut"))
    fit(whole)
    fit(run_of(tmp_path / "cut", 2))
    trainer = make_run(cut)
    trainer.fit([JsonLines()])
    assert losses(cut) == losses(whole)
    saved = saved_state(cut, 4)
    assert_same_bits(saved.master, saved_state(whole, 4).master)
    names = {key for part in saved.master["layers"]["all"].values() for key in part}
    assert list(saved.master) == ["layers"] and all("_lora_" in name for name in names) and not saved.frozen
    assert_same_bits(
        np.asarray(trainer.state.frozen["layers"]["all"]["mlp"]["up"][1]),
        tensors(FOLDER / "llama")["model.layers.1.mlp.up_proj.weight"].T.copy(),
    )
    model = open_source(folder_of(cut), "MODEL")
    a, b = (saved.master["layers"]["all"]["mlp"][f"up_{end}"][1] for end in ("lora_a", "lora_b"))
    wanted = tensors(FOLDER / "llama")["model.layers.1.mlp.up_proj.weight"].T + 2.0 * (a @ b)
    found = model.read("layers.mlp.up", [1], (slice(4, 9), slice(2, 40)))[0]
    np.testing.assert_allclose(found, wanted[4:9, 2:40], rtol=1e-6, atol=1e-7)

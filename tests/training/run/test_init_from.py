"""A run may begin with the weights of a model: read by parts onto any layout, and never again once it has saved."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config import Config
from jaxpar.config.kinds import layer_kinds
from jaxpar.config.mappings.rope import RopeConfig
from jaxpar.convert import main
from jaxpar.interop.config_json import differences
from jaxpar.interop.mapping.form import Region
from jaxpar.interop.mapping.weight_names import LAYER_PREFIX, weight_specs
from jaxpar.interop.sources.hf_folder import HFFolder
from jaxpar.interop.sources.open_source import open_source
from jaxpar.interop.sources.source import read_part
from jaxpar.interop.sources.tensor_files import TensorFiles
from jaxpar.memory.disk_array import load_disk_arrays
from jaxpar.observe.report.run_record import read_runs
from jaxpar.observe.writers.event_log import EventLog
from jaxpar.training.run.reference import initial_state_from
from tests.goldens.loading import FOLDER, nested, section_of
from tests.interop.folders import copy_of
from tests.same_bits import assert_same_bits
from tests.sentences import refused
from tests.small_run import SmallRun, small
from tests.training.runs import fit, folder_of, losses, make_trainer, run_config, saved_state


def model_of(folder: Path, **changed: Any) -> dict[str, Any]:
    """The model section for the weights of a folder."""
    return section_of(HFFolder(folder).model) | changed


def config_from(folder: Path, to: Path, steps: int, **sections: dict[str, Any]) -> Config:
    """A run of `steps` in `to` that begins with the weights of a folder."""
    run = {"init_from": str(folder), **sections.pop("run", {})}
    return run_config(to, steps, **{"model": model_of(folder), **sections, "run": run})


LAYOUTS: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "split": ("llama", {"parallel": {"fsdp": 2, "tensor": 2, "context": 2}}),
    "replicas": ("qwen2", {"parallel": {"replica": 2, "fsdp": 2, "zero": 1}}),
    "stages with kinds": ("gemma3", {"parallel": {"pipe": 2, "fsdp": 2, "stage_layers": (4, 2)}}),
    "chunks that are padded": (
        "smollm3",
        {"parallel": {"pipe": 2, "schedule": "interleaved", "virtual_stages": 2, "microbatches": 2}},
    ),
    "in host memory": ("phi3", {"parallel": {"fsdp": 2}, "memory": {"optimizer_offload": "host"}}),
    "in files": ("gpt2", {"parallel": {"fsdp": 2}}),
}


@pytest.mark.matrix(quick=("split", "stages with kinds"), ci=4)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_has_the_weights_of_the_files(layout: str, tmp_path: Path):
    name, sections = LAYOUTS[layout]
    source = HFFolder(FOLDER / name)
    if layout == "in files":
        sections = {**sections, "memory": {"optimizer_offload": "file", "offload_dir": str(tmp_path)}}
    run = SmallRun(small(model=model_of(FOLDER / name), optimizer={"ema": 0.9}, **sections))
    residency = run.step.residency
    state = initial_state_from(source, residency.initial_state(), residency)
    for weights in (state.master, state.optimizer["average"]):
        found, vocab = run.by_layer(load_disk_arrays(weights)), source.model.vocab
        assert not found["embedding"]["tokens"][vocab:].any(), "what pads the vocabulary is zero"
        found["embedding"]["tokens"] = found["embedding"]["tokens"][:vocab]
        if "head" in found:
            found["head"]["weight"] = found["head"]["weight"][:, :vocab]
        assert_same_bits(found, dict(stacked(source)))


def test_a_device_reads_its_part_of_the_files_and_no_more(monkeypatch: pytest.MonkeyPatch):
    """Of four devices: a quarter of each matrix, and the norms, which are on all of them."""
    source = HFFolder(FOLDER / "phi3")
    layout = SmallRun(small(model=model_of(FOLDER / "phi3"), parallel={"fsdp": 2, "tensor": 2})).step.layout
    whole, read = TensorFiles.read, []

    def counted(self: TensorFiles, name: str, region: Region) -> np.ndarray:
        found = whole(self, name, region)
        read.append(found.size)
        return found

    monkeypatch.setattr(TensorFiles, "read", counted)
    leaves = jax.tree_util.tree_leaves_with_path(layout.specs)
    own = 0
    for (path, spec), placed in zip(leaves, jax.tree.leaves(layout.state_shardings().master), strict=True):
        shape = placed.shard_shape(spec.shape)
        read_part(source, path, spec, layout.order)(tuple(slice(0, size) for size in shape))
        own += np.prod(shape)
    total = sum(spec.size for _, spec in leaves)
    assert sum(read) <= own < 0.27 * total


def stacked(source: HFFolder) -> dict[str, Any]:
    """The weights by stacks, read whole from the tensors, in float32."""
    kinds, leaves = layer_kinds(source.model), {}
    for kind in dict.fromkeys(kinds):
        for name, spec in weight_specs(source.model, kind).items():
            whole = tuple(slice(0, size) for size in spec.shape)
            layers = [layer for layer, own in enumerate(kinds) if own == kind]
            in_layer = name.startswith(LAYER_PREFIX)
            key = name.replace(LAYER_PREFIX, f"{LAYER_PREFIX}{kind}.")
            leaves[key] = source.read(name, layers if in_layer else None, whole).astype(np.float32)
    return nested(leaves)


def test_a_run_begins_with_the_weights_and_the_same_command_goes_on(tmp_path: Path):
    model = copy_of("llama", tmp_path / "model")
    whole = config_from(model, tmp_path / "whole", 4)
    _, recorded = fit(whole)
    assert any(str(model) in message and "llama" in message for message in recorded.messages)
    cut = config_from(model, tmp_path / "cut", 2)
    fit(cut)
    shutil.rmtree(model)  # a run that has a checkpoint does not need it
    on = config_from(FOLDER / "llama", tmp_path / "cut", 4, run={"init_from": str(model)})
    _, recorded = fit(on)
    assert not any("first weights" in message for message in recorded.messages)
    assert losses(on) == losses(whole)
    assert_same_bits(saved_state(on, 4).master, saved_state(whole, 4).master)
    drawn = run_config(tmp_path / "drawn", 1, model=model_of(FOLDER / "llama"))
    fit(drawn)
    assert abs(losses(drawn)[1] - losses(whole)[1]) > 0.1, "and other ones than a run that draws its weights"


@pytest.mark.long
def test_a_second_stage_goes_from_a_run_to_a_run_and_out_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """Another window, sequence length and schedule; then the export, whose tokenizer and keys are the first model's."""
    model = copy_of("qwen3", tmp_path / "model")
    (model / "tokenizer.json").write_text("{}")
    first = config_from(model, tmp_path, 1, run={"name": "first"})
    fit(first)
    options = model_of(model, rope=RopeConfig(base=2000.0), vocab_multiple=32)
    data = {"sequence_length": 16, "batch_size": 4}
    second = run_config(
        tmp_path, 1, model=options, data=data, run={"name": "second", "init_from": str(folder_of(first))}
    )
    _, recorded = fit(second, EventLog())
    stages = [f"{folder_of(first)} (step 1)", str(model)]
    assert open_source(folder_of(second), "MODEL").lineage == (f"{folder_of(second)} (step 1)", *stages)
    assert read_runs([folder_of(second)])[0].came_from == stages
    assert any("model.rope.base (1000.0, not 2000.0)" in message for message in recorded.messages)
    assert main(["jaxpar-to-hf", str(folder_of(second)), str(tmp_path / "out")]) == 0
    assert "qwen3" in capfd.readouterr().out
    out = HFFolder(tmp_path / "out")
    assert (tmp_path / "out/tokenizer.json").exists() and out.model.rope.base == 2000.0
    shutil.rmtree(model)
    assert main(["jaxpar-to-hf", str(folder_of(second)), str(tmp_path / "anew")]) == 0
    assert "cannot be used for its config.json" in capfd.readouterr().out
    assert differences(HFFolder(tmp_path / "anew").model, out.model) == []
    trained = saved_state(second, 1).master
    tokens = out.read("embedding.tokens", None, (slice(0, 61), slice(0, 32)))
    assert_same_bits(tokens, np.asarray(trained["embedding"]["tokens"][:61]))
    step = folder_of(second) / "checkpoints/00000001"
    for path in (folder_of(second), step):
        query = open_source(path, "MODEL").read("layers.attention.query", [1], (slice(3, 9), slice(0, 4), slice(2, 5)))
        assert_same_bits(query[0], np.asarray(trained["layers"]["all"]["attention"]["query"][1, 3:9, :, 2:5]))
    fit(replace(second, run=replace(second.run, steps=2)), EventLog())
    assert read_runs([folder_of(second)])[0].came_from == stages, "a continued run came from the same models"


MISFITS = {
    "vocabulary": ({"vocab": 64}, ("model.vocab", "61", "64")),
    "layers": ({"layers": 3}, ("model.layers", "2", "3")),
    "shape": ({"head_dim": 8, "kv_heads": 4}, ("model.head_dim (16, not 8)", "model.kv_heads (2, not 4)")),
    "a weight that it lacks": ({"qk_norm": True}, ("model.qk_norm", "false", "true")),
    "meaning": ({"norm": "zero_centered_rmsnorm"}, ("model.norm", "rmsnorm", "zero_centered_rmsnorm")),
}


@pytest.mark.parametrize("case", MISFITS)
def test_weights_that_do_not_fit_are_refused_before_anything_is_written(case: str, tmp_path: Path):
    changed, parts = MISFITS[case]
    config = config_from(FOLDER / "llama", tmp_path / "runs", 1, model=model_of(FOLDER / "llama", **changed))
    with refused("run.init_from", str(FOLDER / "llama"), *parts):
        make_trainer(config).fit([])
    assert not (tmp_path / "runs").exists()


def test_other_first_weights_make_it_another_run(tmp_path: Path):
    config = config_from(FOLDER / "llama", tmp_path, 1)
    fit(config)
    with refused("run.name", "run.init_from", "elsewhere"):
        fit(config_from(FOLDER / "llama", tmp_path, 1, run={"init_from": "elsewhere"}))

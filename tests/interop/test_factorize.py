"""`convert factorize`: the factors are the best of their rank, or drawn; what it writes is a MODEL like any other."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config.kinds import ALL, layer_kinds
from jaxpar.convert import main
from jaxpar.interop.mapping.weight_names import LAYER_PREFIX, weight_specs
from jaxpar.interop.sources.hf_folder import HFFolder
from jaxpar.interop.sources.open_source import open_source, origin_of
from jaxpar.interop.sources.saved_weights import SavedWeights
from jaxpar.interop.sources.source import check_fits
from jaxpar.mesh.layer_order import LayerOrder
from jaxpar.mesh.parameters import initial_weights
from jaxpar.model.decoder import decoder_specs
from jaxpar.training.run.reference import initial_state_from
from tests.goldens.loading import FOLDER, tokens_and_logits
from tests.interop.folders import copy_of, tensors
from tests.interop.test_adapter import save_factors
from tests.model.test_goldens import logits
from tests.reference.decoder64 import plain_batch
from tests.same_bits import assert_same_bits
from tests.sentences import refused, refused_by_command
from tests.small_run import SmallRun, small
from tests.training.run.test_init_from import model_of


def factorize(*arguments: object) -> SavedWeights:
    """Run the command, which succeeds; OUT is the second argument."""
    assert main(["factorize", *map(str, arguments)]) == 0
    source = open_source(Path(str(arguments[1])), "MODEL")
    assert isinstance(source, SavedWeights)
    return source


def layers_of(source: Any, weight: str) -> np.ndarray:
    """A weight of all layers that have it, [layer, inputs or rank, ...], as matrices."""
    kinds = layer_kinds(source.model)
    layers = [layer for layer, kind in enumerate(kinds) if weight in weight_specs(source.model, kind)]
    spec = weight_specs(source.model, kinds[layers[0]])[weight]
    values = source.read(weight, layers, tuple(slice(0, size) for size in spec.shape)).astype(np.float32)
    return values.reshape(len(layers), int(np.prod(spec.shape[: spec.inputs])), -1)


@pytest.mark.parametrize(("name", "left"), [("llama", []), ("gemma3", ["key", "value"]), ("gpt2", [])])
def test_no_product_of_the_rank_is_nearer(name: str, left: list[str], tmp_path, capfd):
    """Eckart and Young: what is lost is the sum of the squares of the singular values that are left out."""
    found = factorize(FOLDER / name, tmp_path / "out", "--rank", 11)
    printed = capfd.readouterr().out
    before, ranks = HFFolder(FOLDER / name), found.model.low_rank
    assert set(ranks.values()) == {11}
    lines = [line for line in printed.splitlines() if "not factorized" in line]
    assert [line.split(": ")[1].split(", ") for line in lines] == [left] * bool(left)
    assert not set(left) & set(ranks)
    kinds, names = layer_kinds(before.model), {}
    for kind in kinds:
        names |= weight_specs(before.model, kind)
    seen = 0
    for weight in names:
        own = weight.rpartition(".")[2]
        if not weight.startswith(LAYER_PREFIX):
            whole = tuple(slice(0, size) for size in names[weight].shape)
            np.testing.assert_array_equal(found.read(weight, None, whole), before.read(weight, None, whole))
        elif own not in ranks:
            np.testing.assert_array_equal(layers_of(found, weight), layers_of(before, weight))
        else:
            w, a, b = layers_of(before, weight), layers_of(found, f"{weight}_a"), layers_of(found, f"{weight}_b")
            values = np.linalg.svd(w.astype(np.float64), compute_uv=False)
            lost = ((w - a @ b).astype(np.float64) ** 2).sum((1, 2))
            np.testing.assert_allclose(lost, (values[:, 11:] ** 2).sum(1), rtol=1e-4)
            np.testing.assert_allclose(np.linalg.norm(a, axis=(1, 2)), np.linalg.norm(b, axis=(1, 2)), rtol=1e-4)
            error = (lost.sum() / (values**2).sum()) ** 0.5
            [line] = [line for line in printed.splitlines() if line.split()[0] == own]
            assert line.endswith(f"relative error {error:.2g}")
            seen += 1
    assert seen == len(ranks) >= 4


def test_a_share_bounds_the_weights_of_every_matrix(tmp_path: Path):
    found = factorize(FOLDER / "llama", tmp_path / "out", "--share", 0.4)
    whole = weight_specs(HFFolder(FOLDER / "llama").model, ALL)
    for weight in (name for name in whole if name.rpartition(".")[2] in found.model.low_rank):
        size = sum(layers_of(found, f"{weight}_{end}")[0].size for end in "ab")
        of_a_rank = size / found.model.low_rank[weight.rpartition(".")[2]]
        assert size <= 0.4 * whole[weight].size < size + of_a_rank
    assert len(found.model.low_rank) == 7


def test_random_factors_are_those_that_a_new_run_draws(tmp_path: Path):
    found = factorize(FOLDER / "gpt2", tmp_path / "out", "--rank", 20, "--solver", "random")
    assert found.model.low_rank == {"down": 20, "up": 20}, "the sides of the others are 32"
    order = LayerOrder.from_kinds([0], [layer_kinds(found.model)])
    specs = decoder_specs(found.config, order)["layers"]["all"]["mlp"]
    own = {"layers": {"all": {"mlp": {name: specs[name] for name in ("up_a", "down_b")}}}}
    draw = jax.jit(lambda: initial_weights(own, found.config.run.seed, order))
    for name, drawn in draw()["layers"]["all"]["mlp"].items():
        np.testing.assert_allclose(layers_of(found, f"layers.mlp.{name}"), drawn, rtol=1e-6)


@pytest.mark.matrix(quick=(), ci=1)
@pytest.mark.parametrize("name", ["gpt2", "gemma2", "phi3"])
def test_the_merged_export_has_the_logits_of_the_factors(name: str, tmp_path: Path):
    factorize(FOLDER / name, tmp_path / "out", "--share", 0.5)
    assert main(["jaxpar-to-hf", str(tmp_path / "out"), str(tmp_path / "merged"), "--dtype", "float32"]) == 0
    assert tensors(tmp_path / "merged").keys() == tensors(FOLDER / name).keys()
    tokens, before = tokens_and_logits(name)
    data, found = {"batch_size": tokens.shape[0], "sequence_length": tokens.shape[1]}, []
    low_rank = open_source(tmp_path / "out", "MODEL").model.low_rank
    for folder, tensor in (("out", 2), ("merged", 1)):
        model = model_of(FOLDER / name, low_rank=low_rank if folder == "out" else {})
        run = SmallRun(small(model=model, data=data, parallel={"tensor": tensor}))
        source, residency = open_source(tmp_path / folder, "MODEL"), run.step.residency
        check_fits(source, run.config.model, "MODEL")
        state = initial_state_from(source, residency.initial_state(), residency)
        found.append(
            np.asarray(logits(run.step)(state.master, run.place(plain_batch(tokens))))[..., : before.shape[-1]]
        )
    assert np.abs(found[0] - found[1]).max() <= 1e-5 * np.abs(found[1]).max()
    assert np.abs(found[0] - before).max() > 1e-2 * np.abs(before).max(), "something was left out"


def test_files_and_runs_that_the_model_came_from_are_known_after_it(tmp_path: Path):
    base = copy_of("llama", tmp_path / "base")
    (base / "tokenizer.json").write_text("{}")
    converted = factorize(base, tmp_path / "converted", "--share", 0.5)
    assert (tmp_path / "converted/hf/tokenizer.json").exists()
    assert converted.lineage == (str(tmp_path / "converted"), str(base))
    save_factors(base, tmp_path / "tuned")
    tuned = factorize(tmp_path / "tuned", tmp_path / "of tuned", "--share", 0.5)
    assert tuned.config.lora.rank is None and tuned.config.data.source == "synthetic"
    origin = origin_of(tuned, print)
    assert origin is not None and origin.folder == base
    again = factorize(tmp_path / "converted", tmp_path / "again", "--share", 0.5)
    assert again.model == converted.model
    weight = "layers.mlp.down"
    products = [layers_of(one, f"{weight}_a") @ layers_of(one, f"{weight}_b") for one in (again, converted)]
    np.testing.assert_allclose(*products, atol=1e-6)
    assert_same_bits(*[layers_of(one, "layers.mlp_norm.scale") for one in (again, converted)])


def test_a_run_of_other_ranks_is_refused(tmp_path: Path):
    found = factorize(FOLDER / "llama", tmp_path / "out", "--rank", 9)
    with refused("run.init_from", "model.low_rank", str(tmp_path / "out"), "jaxpar.models"):
        check_fits(found, HFFolder(FOLDER / "llama").model, "run.init_from")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ("--rank N", "--share S")),
        (["--rank", "4", "--share", "0.5"], ("--rank N", "--share S")),
        (["--share", "1.5"], ("--share", "below 1", "1.5")),
        (["--rank", "500"], ("--rank: 500", "query", "down", "21")),
        (["--share", "0.001"], ("--share: 0.001", "smaller")),
        (["--rank", "4", "--dtype", "float32"], ("--dtype", "jaxpar-to-hf")),
        (["--rank", "4", "--check"], ("--check", "hf-to-jaxpar")),
    ],
)
def test_a_bad_argument_is_one_sentence(arguments: list[str], parts: tuple[str, ...], tmp_path, capfd):
    status = main(["factorize", str(FOLDER / "llama"), str(tmp_path / "out"), *arguments])
    refused_by_command(status, *capfd.readouterr(), *parts)
    assert not list(tmp_path.iterdir())


def test_options_of_factorize_are_refused_elsewhere(capfd: pytest.CaptureFixture[str], tmp_path: Path):
    status = main(["jaxpar-to-hf", str(FOLDER / "llama"), str(tmp_path / "out"), "--rank", "4"])
    refused_by_command(status, *capfd.readouterr(), "--rank", "factorize")

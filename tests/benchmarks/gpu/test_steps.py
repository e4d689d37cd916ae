"""Steps that the GPU suite times: what multiplies in ours, and that of PyTorch is the same."""

import jax
import pytest

from benchmarks import torch_step
from benchmarks.gpu import torch_recipes
from benchmarks.gpu.journal import Journal
from benchmarks.gpu.training import EVERY_MATRIX, GPT2, GPT_1_3B_STEP, LLAMA_1B, LLAMA_1B_STEP, RECIPES
from jaxpar.compiler.compile import plan_for
from jaxpar.config import load_config
from jaxpar.hardware.catalogue import gpu_named
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.hardware.described import DescribedGPU
from jaxpar.layers.counting import parameter_count
from jaxpar.layout.choices.matmul import multiplies


def test_a_step_of_a_recipe_names_what_multiplies():
    """No record states that the kernel of tiles was right on a GPU, so that it has to be named."""
    configs = {
        name: load_config(LLAMA_1B, [*LLAMA_1B_STEP, *own, *([EVERY_MATRIX] if own else [])])
        for name, own in RECIPES.items()
    }
    found = {name: multiplies(config, DescribedGPU.from_gpu(gpu_named("h100"))) for name, config in configs.items()}
    assert found == {
        "bfloat16": "xla", "fp8_current": "cublas", "fp8_delayed": "cublas", "fp8_block": "xla",
        "fp8_block, mosaic": "mosaic",
    }  # fmt: skip
    assert multiplies(configs["fp8_current"], jax.devices()[0]) == "xla"


@pytest.mark.parametrize("recipe", torch_recipes.RECIPES.values())
def test_the_step_of_pytorch_is_that_of_ours(recipe: str | None):
    config = load_config(LLAMA_1B, list(LLAMA_1B_STEP))
    settings = torch_step.parse(torch_recipes.command_of(config, recipe)[2:])
    model = config.model
    assert (settings.model["layers"], settings.model["embed"], settings.sequence) == (model.layers, model.embed, 4096)
    assert (settings.batch, settings.microbatches, settings.precision) == (8, 2, "bfloat16")
    assert settings.float8 == recipe and settings.compile


@pytest.mark.parametrize(("program", "why"), [
    ("import no_such_package", "no_such_package is not installed"),
    ("assert 0, 'torch sees no GPU'", "torch sees no GPU"),
])  # fmt: skip
def test_a_step_of_pytorch_that_cannot_run_is_skipped_with_the_reason(program: str, why: str, monkeypatch):
    monkeypatch.setattr(torch_recipes, "TORCH", program)
    journal = Journal("fp8-torch", 100)
    torch_recipes.measure(journal)
    assert [(row["kind"], row["why"]) for row in journal.rows] == [("skipped", why)]


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_step_of_1_3b_parameters_fits_an_h200_and_an_h100(recipe: str):
    every = [EVERY_MATRIX] if RECIPES[recipe] else []
    config = load_config(GPT2, [*GPT_1_3B_STEP, *RECIPES[recipe], *every])
    assert parameter_count(config.model, padded=False) == pytest.approx(1.3e9, rel=0.03)
    for cluster in ("h100:1x1", "h200:1x1"):
        plan = plan_for(config, parse_cluster(cluster))[1]
        assert plan.axes.devices == 1 and plan.microbatch_rows == 16

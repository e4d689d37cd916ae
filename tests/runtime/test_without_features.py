"""The runtime runs without the features that plug into it: FP8, low-rank factors, experts and preferences."""

import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path

import jax
import pytest

from jaxpar.config import config_to_dict, load_config
from jaxpar.data import open_data
from jaxpar.layout.make_plan import make_plan, resolve_config, with_vocab
from tests.processes import ROOT, run_python
from tests.runtime.two_steps import losses_of

FEATURES = {
    "FP8": (
        "jaxpar/precision", "jaxpar/layers/ops/quantized.py", "jaxpar/layers/matmul_formats.py",
        "jaxpar/layout/quantized_matmuls.py", "jaxpar/layout/once_quantized.py",
    ),
    "low-rank factors": ("jaxpar/layers/adapters.py",),
    "experts": ("jaxpar/layers/experts",),
    "preferences": tuple(f"jaxpar/objectives/{name}.py" for name in ("pairs", "dpo", "simpo", "orpo", "kto")),
}  # fmt: skip
"""The files of each feature."""

REGISTRY = "jaxpar/config/parts.py"
ENTRIES = (
    r'^    "(dpo|simpo|orpo|kto)": LossEntry\((?:[^()]|\([^()]*\))*\),\n',
    r'^    "(experts|low_rank_factors|quantized_\w+)": "jaxpar\.[\w.]+:\w+",\n',
)
"""The entries of the registry that name these files."""

TESTS = (
    *(f"tests/model/loop/test_{name}.py" for name in ("layer_loop", "layer_stack", "walk")),
    *(f"tests/model/test_{name}.py" for name in ("dropout", "loss", "norm", "rope")),
    "tests/pipeline/execution",
    "tests/mesh", "--ignore=tests/mesh/quantized", "--ignore=tests/mesh/test_placements.py",
)  # fmt: skip
"""The runtime's tests that make no plan: what chooses one knows the features."""


@pytest.fixture(scope="module")
def bare_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree without the files of the features and their entries in the registry."""
    tree = tmp_path_factory.mktemp("bare")
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    for folder in ("jaxpar", "pallas_kernels", "tests"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tree)
    for path in (tree / path for paths in FEATURES.values() for path in paths):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    text = (tree / REGISTRY).read_text()
    for entry in ENTRIES:
        text, changed = re.subn(entry, "", text, flags=re.MULTILINE)
        assert changed, f"{REGISTRY} has no entry like {entry}"
    (tree / REGISTRY).write_text(text)
    return tree


def run_in(tree: Path, *arguments: str) -> str:
    """The output of Python in a copy of the tree, which must succeed."""
    run = run_python(*arguments, cwd=tree, PYTHONPATH=str(tree))
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    return run.stdout


@pytest.mark.long
def test_the_tests_of_the_runtime_pass_in_a_copy_without_the_features(bare_tree: Path):
    run_in(bare_tree, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TESTS)


def test_a_training_step_of_a_dense_decoder_is_the_same_in_a_copy_without_the_features(bare_tree: Path):
    """The plan is that of the full tree: what chooses a plan knows the features."""
    overrides = ("model.layers=2", "model.embed=32", "model.mlp=48", "data.sequence_length=32", "data.batch_size=8")
    config = resolve_config(load_config(ROOT / "configs/quickstart.yaml", overrides), len(jax.devices()))
    config = with_vocab(config, open_data(config.data, vocab=config.model.vocab, seed=config.run.seed).vocab)
    plain = {"config": config_to_dict(config), "plan": asdict(make_plan(config, jax.devices()[0]))}
    file = bare_tree / "plan.json"
    file.write_text(json.dumps(plain))
    assert json.loads(run_in(bare_tree, "-m", "tests.runtime.two_steps", str(file))) == losses_of(plain)

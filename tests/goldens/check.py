"""Compares configurations drawn at random with transformers: `make goldens-check`.

    python -m tests.goldens.check --transformers PYTHON [--count 10] [--seed 0] [NAME ...]

PYTHON is one with torch and transformers. For each golden, `--count` configurations are drawn around it; that
PYTHON makes random models and their logits in float64. Each is read here and compared: logits in float32 at lengths 1,
17 and 200 within 1e-5 of the largest, the likeliest tokens, tensors of the export bit for bit; the export, and one
whose `config.json` was written anew, are loaded there again. In bfloat16 the difference from float64 is printed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxpar.config import Config
from jaxpar.config.errors import UserError
from jaxpar.config.schema import DataConfig, LossConfig
from jaxpar.interop.config_json import config_of, differences, model_of
from jaxpar.interop.conversion.export import plan_export
from jaxpar.interop.mapping.keys import HFConfig
from jaxpar.interop.sources.hf_folder import HFFolder
from jaxpar.layout.checks.validate import validate
from jaxpar.mesh.parameters import Weights
from jaxpar.training.run.reference import begun_from
from tests.goldens.configurations import LENGTH, Keys, drawn
from tests.goldens.loading import FOLDER, NAMES, section_of
from tests.interop.folders import tensors
from tests.model.test_goldens import TOLERANCE, logits
from tests.reference.decoder64 import plain_batch
from tests.small_run import SmallRun, small

LENGTHS = (1, 17, LENGTH)
WITHOUT = ("gla_swa", "kimi_k2")
"""Goldens that transformers has no class for; that of Kimi K2 is DeepSeek-V3's."""


def accepted(keys: Keys) -> bool:
    """Whether a configuration can be read, and its model be trained; some classes of transformers take a
    `hidden_size` only as a multiple of the heads."""
    if keys.get("hidden_size", 0) % keys.get("num_attention_heads", 1):
        return False
    try:
        model = model_of(HFConfig("config.json", keys))[1]
        loss = LossConfig() if model.causal else LossConfig(name="masked", mask_token=3)
        validate(Config(model=model, loss=loss, data=DataConfig(sequence_length=16)))
        return True
    except UserError:
        return False


def draw(out: Path, names: list[str], count: int, seed: int) -> None:
    """Write the configurations."""
    for name in names:
        keys = json.loads((FOLDER / name / "config.json").read_text()) | {"dtype": "float32"}
        lengths = {key: max(keys[key], LENGTH) for key in ("max_position_embeddings", "n_positions") if key in keys}
        for number in range(count):
            random = np.random.default_rng([seed, number, *name.encode()])
            folder = out / f"{name}-{seed}-{number}"
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps(drawn(keys | lengths, random, accepted)))


def run_of(source: HFFolder, length: int, compute: str = "float32") -> SmallRun:
    """A run on one device with one row."""
    data = {"batch_size": 1, "sequence_length": length}
    return SmallRun(small(model=section_of(source.model), data=data, precision={"compute": compute}))


def weights_of(source: HFFolder) -> Weights:
    """Weights, which runs of all lengths share."""
    step = run_of(source, LENGTH).step
    zeros = lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype), leaf.sharding)
    before = jax.tree.map(zeros, step.layout.abstract_state(step.mesh))  # initial ones are slow to compile
    return begun_from(source, before, step.residency).master


def ours(source: HFFolder, weights: Weights, tokens: np.ndarray, compute: str) -> np.ndarray:
    """Logits [row, seq, vocab]."""
    run = run_of(source, tokens.shape[1], compute)
    found = np.asarray(logits(run.step)(weights, run.place(plain_batch(tokens))), np.float64)
    return found[..., : source.model.vocab]


def compared(folder: Path, wrong: list[str]) -> str:
    """Compare a model, adding to `wrong` what differs; returns a line about it."""
    try:
        source = HFFolder(folder)
    except UserError as error:
        wrong.append(str(error))
        return ""
    worst, weights = 0.0, weights_of(source)
    with np.load(folder / "logits.npz") as stored:
        arrays: dict[str, np.ndarray] = dict(stored)
    for length in LENGTHS:
        tokens, wanted = arrays[f"tokens_{length}"], arrays[f"logits_{length}"]
        found = ours(source, weights, tokens, "float32")
        difference = float(np.abs(found - wanted).max() / np.abs(wanted).max())
        worst = max(worst, difference)
        if not difference <= TOLERANCE:
            wrong.append(f"length {length}: logits differ by {difference:.1e} of the largest")
        first, second = np.sort(wanted, -1)[..., ::-1][..., :2].transpose(2, 0, 1)
        clear = first - second > 2 * TOLERANCE * np.abs(wanted).max()
        if (found.argmax(-1) != wanted.argmax(-1))[clear].any():
            wrong.append(f"length {length}: other tokens are the likeliest")
    rounded = ours(source, weights, tokens, "bfloat16")
    coarse = float(np.abs(rounded - wanted).max() / np.abs(wanted).max())
    wrong += export(folder, source)
    return f"{worst:.1e} in float32, {coarse:.1e} in bfloat16"


def export(folder: Path, source: HFFolder) -> list[str]:
    """Write the export of a model, and one with a new `config.json`; what is wrong with them."""
    for name in ("export", "anew"):
        (folder / name).mkdir()
        plan_export(source).write(folder / name, shard_bytes=10**9)
    keys = config_of(source.family, source.model, {}, length=LENGTH)
    (folder / "anew/config.json").write_text(json.dumps(keys))
    before, after = tensors(folder), tensors(folder / "export")
    wrong = [f"export: {name} differs" for name in before.keys() ^ after.keys()]
    wrong += [name for name in before.keys() & after.keys() if before[name].tobytes() != after[name].tobytes()]
    if differences(HFFolder(folder / "anew").model, source.model):
        wrong.append("the new config.json is read as another model")
    return wrong


def by_transformers(python: str, out: Path, *more: str) -> dict[str, list[str]]:
    """The mistakes that `tests.goldens.compute` reports."""
    threads = {"OMP_NUM_THREADS": "1"}  # more only wait for each other in models this small
    environment = os.environ | threads | {"PYTHONPATH": str(FOLDER.parents[1]), "HF_HUB_OFFLINE": "1"}
    command = [python, "-m", "tests.goldens.compute", str(out), *more]
    subprocess.run(command, env=environment, check=True, cwd=FOLDER.parents[1], stderr=subprocess.DEVNULL)
    return json.loads((out / f"failures{''.join(more)}.json").read_text())


def summary(folder: Path) -> str:
    """The keys of a configuration that are not the golden's."""
    golden: dict[str, Any] = json.loads((FOLDER / folder.name.rsplit("-", 2)[0] / "config.json").read_text())
    keys = json.loads((folder / "config.json").read_text())
    return ", ".join(f"{key} {value}" for key, value in keys.items() if golden.get(key) != value)


def main(arguments: list[str]) -> int:
    """Run all; the exit code is 1 if anything is wrong."""
    parser = argparse.ArgumentParser("tests.goldens.check")
    parser.add_argument("--transformers", metavar="PYTHON", default=sys.executable)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args(arguments)
    names = options.names or [name for name in NAMES if name not in WITHOUT]
    with tempfile.TemporaryDirectory() as made:
        out = Path(made)
        draw(out, names, options.count, options.seed)
        wrong = by_transformers(options.transformers, out)
        for folder in sorted(one for one in out.iterdir() if one.is_dir()):
            lines = wrong.setdefault(folder.name, [])
            line = ""
            try:
                line = line if lines else compared(folder, lines)
            except UserError as error:
                lines.append(str(error))
            print(f"{folder.name}: {'; '.join(lines) or line} ({summary(folder)})", flush=True)
        for name, lines in by_transformers(options.transformers, out, "exported").items():
            if not wrong[name]:
                wrong[name] = lines
                print(f"{name}: {'; '.join(lines)}")
    failed = sum(map(bool, wrong.values()))
    print(f"{failed} of {options.count * len(names)} differ")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

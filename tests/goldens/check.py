"""Compares configurations drawn at random with transformers: `make goldens-check`.

    python -m tests.goldens.check --transformers PYTHON [--count 10] [--seed 0] [NAME ...]

PYTHON is one with torch and transformers. For each golden, `--count` configurations are drawn around it, one of each
in turn; that PYTHON makes random models and their logits in float64. Each is read here and compared: logits in float32
at lengths 1, 17 and 200 within 1e-5 of the largest, the longest of every other model on a split mesh; the likeliest
tokens; logits in bfloat16, no further from float64 than several times those of transformers in bfloat16; tensors of
the export bit for bit. The export, and one whose `config.json` was written anew, are loaded there again. At the end
stands a table of all families.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxpar.config import Config
from jaxpar.config.errors import UserError
from jaxpar.config.schema import DataConfig, LossConfig
from jaxpar.interop.config_json import config_of, differences, model_of
from jaxpar.interop.conversion.export import TOKEN_IDS, plan_export
from jaxpar.interop.mapping.keys import HFConfig
from jaxpar.interop.sources.hf_folder import HFFolder
from jaxpar.layout.checks.validate import validate
from jaxpar.mesh.parameters import Weights
from jaxpar.training.run.reference import initial_state_from
from tests.goldens.configurations import LENGTH, Keys, drawn
from tests.goldens.loading import FOLDER, NAMES, section_of
from tests.interop.folders import tensors
from tests.model.test_goldens import TOLERANCE, logits
from tests.reference.decoder64 import plain_batch
from tests.small_run import SmallRun, small

LENGTHS = (1, 17, LENGTH)
WITHOUT = ("gla_swa", "kimi_k2")
"""Goldens that transformers has no class for; that of Kimi K2 is DeepSeek-V3's."""
SPLIT = (
    {"context": 2, "tensor": 2, "context_order": "contiguous"}, {"tensor": 2},
    {"context": 2, "context_order": "contiguous"},
)  # fmt: skip
"""Layouts of the longest row, the first that a model can have."""
ROUNDING = ("chunk_size", "mamba_chunk_size", "block_size")
"""Keys of how a scan is cut into chunks: transformers adds some of it up in float32, so that the same model has logits
that differ by up to 4e-6 of the largest with another value."""
COARSER, LEAST = 4.0, 0.01
"""The difference of logits in bfloat16 is at most `COARSER` times that of transformers, and `LEAST`."""
FLAGS = "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"


@dataclass(frozen=True)
class Result:
    """Differences of the logits of a model from float64: the largest in float32 over the largest logit; those of the
    median token in bfloat16, here and in transformers."""

    float32: float
    bfloat16: float
    theirs: float
    tied: bool
    split: bool

    def __str__(self) -> str:
        flags = [name for name in ("tied", "split") if getattr(self, name)]
        numbers = f"{self.float32:.1e} in float32, {self.bfloat16:.1e} in bfloat16 (transformers {self.theirs:.1e})"
        return ", ".join([numbers, *flags])


def accepted(keys: Keys) -> bool:
    """Whether a configuration can be read, and its model be trained, and transformers computes it: some classes take a
    `hidden_size` only as a multiple of the heads, and Gemma 4's tokens only with rows of the inputs of layers. Kimi
    Linear has a layer of latent attention, without which no export has its ranks."""
    if keys["model_type"] == "kimi_linear" and "full_attention" not in keys["layer_types"]:
        return False
    rows = keys["vocab_size_per_layer_input"] if keys["model_type"] == "gemma4_text" else keys["vocab_size"]
    if keys.get("hidden_size", 0) % keys.get("num_attention_heads", 1) or rows < keys["vocab_size"]:
        return False
    try:
        model = model_of(HFConfig("config.json", keys))[1]
        loss = LossConfig() if model.causal else LossConfig(name="masked", mask_token=3)
        validate(Config(model=model, loss=loss, data=DataConfig(sequence_length=16)))
        return True
    except UserError:
        return False


def chosen(stated: list[str]) -> list[str]:
    """The goldens to compare: all that can be, or those stated.

    Raises:
        UserError: one is none, or transformers has no class for it.
    """
    for name in stated:
        if name not in NAMES:
            raise UserError(f"there is no golden {name}")
        if name in WITHOUT:
            raise UserError(f"transformers has no class for {name}")
    return stated or [name for name in NAMES if name not in WITHOUT]


def draw(out: Path, names: list[str], number: int, seed: int) -> None:
    """Write a configuration of each family."""
    for name in names:
        keys = json.loads((FOLDER / name / "config.json").read_text()) | {"dtype": "float32"}
        lengths = {key: max(keys[key], LENGTH) for key in ("max_position_embeddings", "n_positions") if key in keys}
        random = np.random.default_rng([seed, number, *name.encode()])
        folder = out / f"{name}-{seed}-{number}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(drawn(keys | lengths, random, accepted)))


def layout_of(source: HFFolder, number: int) -> dict[str, Any]:
    """The `parallel` section for the longest row of a model: every other model is split."""
    for parallel in SPLIT if number % 2 else ():
        try:
            run_of(source, LENGTH, parallel=parallel)
            return parallel
        except UserError:  # its heads cannot be split
            continue
    return {}


def run_of(
    source: HFFolder, length: int, compute: str = "float32", parallel: Mapping[str, Any] | None = None
) -> SmallRun:
    """A run with one row."""
    data = {"batch_size": 1, "sequence_length": length}
    model, precision = section_of(source.model), {"compute": compute}
    return SmallRun(small(model=model, data=data, precision=precision, parallel=dict(parallel or {})))


def weights_of(source: HFFolder, parallel: Mapping[str, Any] | None = None) -> Weights:
    """Weights, which runs of all lengths share."""
    step = run_of(source, LENGTH, parallel=parallel).step
    zeros = lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype), leaf.sharding)
    before = jax.tree.map(zeros, step.layout.abstract_state(step.mesh))  # initial ones are slow to compile
    return initial_state_from(source, before, step.residency).master


def ours(source: HFFolder, run: SmallRun, weights: Weights, tokens: np.ndarray) -> np.ndarray:
    """Logits [row, seq, vocab]."""
    found = np.asarray(logits(run.step)(weights, run.place(plain_batch(tokens))), np.float64)
    return found[..., : source.model.vocab]


def difference(found: np.ndarray, wanted: np.ndarray) -> float:
    """The root of the mean square of the median token's difference over that of what is wanted: where two experts are
    nearly as likely, rounding chooses the other one for a token or two, in transformers too."""
    return float(np.sqrt(np.median(((found - wanted) ** 2).mean(-1)) / (wanted**2).mean()))


def compared(folder: Path, number: int, wrong: list[str]) -> Result | None:
    """Compare a model, adding to `wrong` what differs; its numbers, if it can be read."""
    try:
        source = HFFolder(folder)
    except UserError as error:
        wrong.append(str(error))
        return None
    worst, split = 0.0, layout_of(source, number)
    weights = weights_of(source)
    with np.load(folder / "logits.npz") as stored:
        arrays: dict[str, np.ndarray] = dict(stored)
    for length in LENGTHS:
        tokens, wanted = arrays[f"tokens_{length}"], arrays[f"logits_{length}"]
        layout = split if length == LENGTH else {}
        run = run_of(source, length, parallel=layout)
        found = ours(source, run, weights_of(source, layout) if layout else weights, tokens)
        worst = most((worst, np.abs(found - wanted).max() / np.abs(wanted).max()))
        wrong += unlike(found, wanted, f"length {length}{f', split over {layout}' if layout else ''}")
    theirs, rounded = difference(arrays["bfloat16"], wanted), list[float]()
    for layout in ({}, split) if split else ({},):
        run = run_of(source, LENGTH, "bfloat16", layout)
        found = ours(source, run, weights_of(source, layout) if layout else weights, tokens)
        rounded.append(difference(found, wanted))
        wrong += coarser(rounded[-1], theirs, f"bfloat16{f', split over {layout}' if layout else ''}")
    wrong += export(folder, source)
    return Result(worst, most(rounded), theirs, source.model.tied, bool(split))


def most(numbers: Iterable[float]) -> float:
    """The largest, at least 0; NaN if one is NaN."""
    return float(np.max(list(numbers), initial=0.0))


def coarser(rounded: float, theirs: float, about: str) -> list[str]:
    """The errors of a difference of logits in bfloat16."""
    if rounded <= COARSER * theirs + LEAST:
        return []
    return [f"{about}: logits differ by {rounded:.1e}, those of transformers by {theirs:.1e}"]


def unlike(found: np.ndarray, wanted: np.ndarray, about: str) -> list[str]:
    """The errors of logits."""
    lines, largest = [], float(np.abs(wanted).max())
    worst = float(np.abs(found - wanted).max()) / largest
    if not worst <= TOLERANCE:
        lines.append(f"{about}: logits differ by {worst:.1e} of the largest")
    first, second = np.sort(wanted, -1)[..., ::-1][..., :2].transpose(2, 0, 1)
    if (found.argmax(-1) != wanted.argmax(-1))[first - second > 2 * TOLERANCE * largest].any():
        lines.append(f"{about}: other tokens are the likeliest")
    return lines


def export(folder: Path, source: HFFolder) -> list[str]:
    """Write the export of a model, and one with a new `config.json`; what is wrong with them."""
    for name in ("export", "anew"):
        (folder / name).mkdir()
        plan_export(source).write(folder / name, shard_bytes=10**9)
    before = json.loads((folder / "config.json").read_text())
    base = dict.fromkeys(TOKEN_IDS) | {key: before[key] for key in ROUNDING if key in before}
    keys = config_of(source.family, source.model, base, length=LENGTH)
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


def table(results: Mapping[str, list[Result]], wrong: Mapping[str, list[str]]) -> str:
    """A line for each family."""
    lines = [
        "| family | models | tied | split | float32 | bfloat16 | transformers in bfloat16 | wrong |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, ones in results.items():
        number = sum(folder.rsplit("-", 2)[0] == name for folder in wrong)
        failed = sum(folder.rsplit("-", 2)[0] == name for folder, one in wrong.items() if one)
        largest = [f"{most(getattr(one, key) for one in ones):.1e}" for key in ("float32", "bfloat16", "theirs")]
        flags = [sum(getattr(one, key) for one in ones) for key in ("tied", "split")]
        lines.append(f"| {' | '.join(map(str, (name, number, *flags, *largest, failed)))} |")
    return "\n".join(lines)


def turn(names: list[str], number: int, options: argparse.Namespace) -> tuple[dict[str, Result], dict[str, list[str]]]:
    """Compare one model of each family; their numbers, and what is wrong with each, by folder."""
    results: dict[str, Result] = {}
    with tempfile.TemporaryDirectory() as made:
        out = Path(made)
        draw(out, names, number, options.seed)
        wrong = by_transformers(options.transformers, out)
        for folder in sorted(one for one in out.iterdir() if one.is_dir()):
            lines = wrong.setdefault(folder.name, [])
            found = None
            try:
                found = None if lines else compared(folder, number, lines)
            except UserError as error:
                lines.append(str(error))
            if found is not None:
                results[folder.name] = found
            print(f"{folder.name}: {'; '.join(lines) or found} ({summary(folder)})", flush=True)
        for name, lines in by_transformers(options.transformers, out, "exported").items():
            if not wrong[name]:
                wrong[name] = lines
                print(f"{name}: {'; '.join(lines)}", flush=True)
    return results, wrong


def main(arguments: list[str]) -> int:
    """Run all; the exit code is 1 if anything is wrong."""
    os.environ.setdefault("XLA_FLAGS", FLAGS)
    parser = argparse.ArgumentParser("tests.goldens.check")
    parser.add_argument("--transformers", metavar="PYTHON", default=sys.executable)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args(arguments)
    try:
        names = chosen(options.names)
    except UserError as error:
        parser.error(str(error))
    results: dict[str, list[Result]] = {name: [] for name in names}
    wrong: dict[str, list[str]] = {}
    for number in range(options.count):
        found, mistakes = turn(names, number, options)
        wrong |= mistakes
        for folder, result in found.items():
            results[folder.rsplit("-", 2)[0]].append(result)
        print(f"{table(results, wrong)}\n{sum(map(bool, wrong.values()))} of {len(wrong)} differ", flush=True)
    return int(any(wrong.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""How answers that older weights drew teach: a model that was fine-tuned on words in reverse order, about a
quarter (27%) of them right, learns from rewards at several lags, with and without corrections.

    python -m benchmarks.lag                             # lags 0, 1, 4, 8; three corrections; two seeds
    python -m benchmarks.lag --lags 0 8 --seeds 1 --steps 80 --set rl.epochs=2 --folder runs/lag-two-epochs

Every run is in a folder of its own; what is there already is not run again, so a study that was cut off goes on. The
settings of each are in a file beside it: a run of other settings is refused, and wants another `--folder`.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import add_json_file, write_json
from jaxpar.cli import Parser, positive
from jaxpar.config.reading.loading import config_to_yaml, load_config

CONFIGS = Path(__file__).parents[1] / "configs"
CORRECTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "truncated": {"loss.policy.mismatch": "truncated"},
    "aipo": {"loss.policy.clip": "aipo", "loss.policy.high": 4.0},
}
"""By name, settings of the loss; `none` leaves it as the configuration has it."""
MODEL = {
    "model.layers": 2, "model.embed": 64, "model.heads": 4, "model.mlp": 256, "run.log_every": 1,
    "data.path": f"{Path(__file__)}:reversed_words", "data.sequence_length": 16,
}  # fmt: skip
FINE_TUNED = {"data.batch_size": 32}
REWARDED = {
    "rl.prompts": 16, "rl.group": 8, "rl.answer_tokens": 6, "rl.rewards": "{exact: 1.0}", "data.batch_size": 128,
    "loss.policy.entropy": 0, "optimizer.schedule": "constant", "optimizer.weight_decay": 0,
}  # fmt: skip
"""An update from 128 answers, each of which is right or wrong, at the rates of `configs/grpo_digits.yaml`."""
LAST = 10
"""Logged steps whose rewards are averaged."""


def reversed_words() -> list[dict[str, str]]:
    """`abc=` and `cba`, and as demonstrations also the word itself, one letter that is wrong, or a turn of letters."""
    draw, letters = np.random.default_rng(0), list("abcdef")
    records = []
    for word in dict.fromkeys("".join(draw.choice(letters, size)) for size in draw.integers(3, 6, 6000)):
        right, other = word[::-1], str(draw.choice(letters))
        shown = (right, word, right[:-1] + other, other + right[1:], right[1:] + right[0])
        records.append({"prompt": f"{word}=", "answer": right, "completion": shown[draw.integers(5)]})
    return records


def main() -> None:
    """Run what is missing, and print a table."""
    parser = Parser(command="benchmarks.lag", description="rewards by the lag of the sampler")
    parser.add_argument("--folder", type=Path, default=Path("runs/lag"), help="where the runs are")
    parser.add_argument("--lags", type=int, nargs="+", default=[0, 1, 4, 8])
    parser.add_argument("--corrections", nargs="+", default=list(CORRECTIONS), choices=CORRECTIONS)
    parser.add_argument("--seeds", type=positive, default=2)
    parser.add_argument("--first-seed", type=positive, default=1)
    parser.add_argument("--steps", type=positive, default=40)
    words = "another setting of all runs with rewards, as in --set rl.epochs=2; may be given many times"
    parser.add_argument("--set", dest="overrides", metavar="KEY=VALUE", action="append", default=[], help=words)
    add_json_file(parser)
    options = parser.parse_args()
    fine_tuned(options)
    results: dict[str, dict[str, list[Mapping[str, float]]]] = {}
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for lag in options.lags:
            for name in options.corrections:
                result = rewarded(options, name, lag, seed)
                results.setdefault(name, {}).setdefault(str(lag), []).append(result)
                shown = "  ".join(f"{key} {value:.3f}" for key, value in result.items())
                print(f"{name:10} lag {lag}  seed {seed}  {shown}", flush=True)
    print(
        f"\nvalidation success after {options.steps} steps, mean of {options.seeds} seeds; the reward of the last steps"
    )
    print(f"{'':10}" + "".join(f"{f'lag {lag}':>16}" for lag in options.lags))
    for name, by_lag in results.items():
        mean = lambda lag, key, by_lag=by_lag: statistics.mean(one[key] for one in by_lag[str(lag)])
        cells = [f"{mean(lag, 'success'):8.1%} {mean(lag, 'reward'):7.3f}" for lag in options.lags]
        print(f"{name:10}" + "".join(f"{cell:>16}" for cell in cells))
    write_json(options.json, results)


def fine_tuned(options: Namespace) -> None:
    """Train the model that all runs with rewards begin with."""
    _run(options.folder, "fine_tuned", CONFIGS / "grpo_json_sft.yaml", 250, FINE_TUNED)


def rewarded(options: Namespace, name: str, lag: int, seed: int) -> dict[str, float]:
    """Validation success and means over the steps of a run; it is trained where it is not in the folder."""
    name = name if lag else "none"  # without a lag nothing is corrected
    run = f"{name}-lag{lag}-{options.steps}-{seed}"
    settings = REWARDED | {"run.init_from": options.folder / "fine_tuned", "run.seed": seed} | CORRECTIONS[name]
    if lag:
        settings |= {"rl.mode": "async", "rl.staleness": lag}
    _run(options.folder, run, CONFIGS / "grpo_digits.yaml", options.steps, settings, options.overrides)
    lines = [json.loads(line) for line in (options.folder / run / "metrics.jsonl").read_text().splitlines()]
    metrics = [line["metrics"] for line in lines]
    mean = lambda key, some: statistics.mean(one[key] for one in some if key in one)
    return {
        "success": metrics[-1]["eval_success"],
        "reward": mean("reward", metrics[-LAST:]),
        "reward_of_all_steps": mean("reward", metrics),
        "effective_samples": mean("effective_samples", metrics),
        "least_effective": min(one["effective_samples"] for one in metrics),
    }


def _run(
    folder: Path, name: str, config: Path, steps: int, settings: Mapping[str, Any], overrides: list[str] | None = None
) -> None:
    """Train a run unless it is there. Raises `SystemExit` where one of other settings is."""
    ends = {
        "run.dir": folder,
        "run.name": name,
        "run.steps": steps,
        "evaluation.every": steps,
        "checkpoint.every": steps,
    }
    every = [*(f"{key}={value}" for key, value in {**MODEL, **ends, **settings}.items()), *(overrides or ())]
    settings_file, wanted = folder / f"{name}.yaml", config_to_yaml(load_config(config, every))
    if (folder / name).exists() and not (settings_file.exists() and settings_file.read_text() == wanted):
        raise SystemExit(f"{folder / name} is a run of other settings than these; expected another --folder")
    if (folder / name / "summary.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    settings_file.write_text(wanted)
    words = [word for one in every for word in ("--set", one)]
    command = [sys.executable, "-m", "jaxpar.train", "--config", str(config), *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()

"""How answers that older weights drew teach: `configs/grpo_digits.yaml` at several lags, with and without corrections.

    python -m benchmarks.lag                             # lags 0, 1, 4, 8; three corrections; a seed
    python -m benchmarks.lag --lags 0 8 --seeds 3 --steps 800 --set rl.epochs=2 --folder runs/lag-two-epochs

Every run is in a folder of its own; what is there already is not run again, so a study that was cut off goes on.
Other settings want another `--folder`.
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

from benchmarks.results import add_json_file, write_json
from jaxpar.cli import Parser, positive

CONFIG = Path(__file__).parents[1] / "configs/grpo_digits.yaml"
CORRECTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "truncated": {"loss.policy.mismatch": "truncated"},
    "aipo": {"loss.policy.clip": "aipo", "loss.policy.high": 4.0},
}
"""By name, settings of the loss; `none` leaves it as the configuration has it."""
SMALLER = {"rl.prompts": 16, "rl.group": 8, "data.batch_size": 64}
"""A quarter of the answers of that configuration."""
LAST = 20
"""Logged steps whose rewards are averaged."""


def main() -> None:
    """Run what is missing, and print a table."""
    parser = Parser(command="benchmarks.lag", description="rewards by the lag of the sampler")
    parser.add_argument("--folder", type=Path, default=Path("runs/lag"), help="where the runs are")
    parser.add_argument("--lags", type=int, nargs="+", default=[0, 1, 4, 8])
    parser.add_argument("--corrections", nargs="+", default=list(CORRECTIONS), choices=CORRECTIONS)
    parser.add_argument("--seeds", type=positive, default=1)
    parser.add_argument("--steps", type=positive, default=300)
    words = "another setting of all runs, as in --set rl.epochs=2; may be given many times"
    parser.add_argument("--set", dest="overrides", metavar="KEY=VALUE", action="append", default=[], help=words)
    add_json_file(parser)
    options = parser.parse_args()
    results: dict[str, dict[str, list[Mapping[str, float]]]] = {}
    for seed in range(1, options.seeds + 1):
        for lag in options.lags:
            for name in options.corrections:
                result = trained(options, name, lag, seed)
                results.setdefault(name, {}).setdefault(str(lag), []).append(result)
                shown = "  ".join(f"{key} {value:.3f}" for key, value in result.items())
                print(f"{name:10} lag {lag}  seed {seed}  {shown}", flush=True)
    print(
        f"\nheld-out success after {options.steps} steps, mean of {options.seeds} seeds; the reward of the last steps"
    )
    print(f"{'':10}" + "".join(f"{f'lag {lag}':>16}" for lag in options.lags))
    for name, by_lag in results.items():
        mean = lambda lag, key, by_lag=by_lag: statistics.mean(one[key] for one in by_lag[str(lag)])
        cells = [f"{mean(lag, 'success'):8.1%} {mean(lag, 'reward'):7.3f}" for lag in options.lags]
        print(f"{name:10}" + "".join(f"{cell:>16}" for cell in cells))
    write_json(options.json, results)


def trained(options: Namespace, name: str, lag: int, seed: int) -> dict[str, float]:
    """Held-out success and means over the steps of a run; it is trained where it is not in the folder."""
    name = name if lag else "none"  # without a lag nothing is corrected
    run = f"{name}-lag{lag}-{options.steps}-{seed}"
    folder = options.folder / run
    if not (folder / "summary.json").exists():
        settings = {
            "run.dir": options.folder, "run.name": run, "run.steps": options.steps, "run.seed": seed,
            "run.log_every": 1, "evaluation.every": options.steps, "checkpoint.every": options.steps, **SMALLER,
            **CORRECTIONS[name],
        }  # fmt: skip
        if lag:
            settings |= {"rl.mode": "async", "rl.staleness": lag}
        every = [*(f"{key}={value}" for key, value in settings.items()), *options.overrides]
        words = [word for one in every for word in ("--set", one)]
        command = [sys.executable, "-m", "jaxpar.train", "--config", str(CONFIG), *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    metrics = [line["metrics"] for line in lines]
    mean = lambda key, some: statistics.mean(one[key] for one in some if key in one)
    return {
        "success": metrics[-1]["eval_success"],
        "reward": mean("reward", metrics[-LAST:]),
        "reward_of_all_steps": mean("reward", metrics),
        "effective_samples": mean("effective_samples", metrics),
        "least_effective": min(one["effective_samples"] for one in metrics),
    }


if __name__ == "__main__":
    main()

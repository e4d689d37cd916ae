"""A long run of tiny steps with everything on, which prints what it used on the way.

    python -m tests.training.damage.soak FOLDER --steps 20000

prints a line of JSON per evaluation on stderr: the step, the process's memory in bytes, the arrays that are alive, the
threads and open files that there are; how long steps took is in the run's own metrics.
"""

import argparse
import gc
import json
import os
import sys
import threading
import time
from pathlib import Path

import jax

from jaxpar.observe.events import Listener
from jaxpar.observe.writers.default import default_listeners
from jaxpar.training.run.trainer import Trainer
from tests.training.runs import run_config

PAGE = os.sysconf("SC_PAGE_SIZE")


class Gauge(Listener):
    """Measures at each evaluation."""

    def evaluation(self, step: int, loss: float, baseline: float | None) -> None:
        gc.collect()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
        found = {
            "step": step,
            "processor_s": time.process_time(),
            "resident": resident,
            "arrays": len(jax.live_arrays()),
        }
        found |= {"threads": threading.active_count(), "files": len(os.listdir("/proc/self/fd"))}
        print(json.dumps(found), file=sys.stderr, flush=True)


def main(folder: Path, steps: int) -> None:
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1"
    jax.config.update("jax_platforms", "cpu")
    config = run_config(
        folder,
        steps,
        run={"log_every": 10},
        model={"layers": 1, "embed": 8, "heads": 2, "kv_heads": 2, "mlp": 8, "vocab": 16, "vocab_multiple": 1},
        data={"sequence_length": 8, "batch_size": 2},
        optimizer={"decay_steps": None, "learning_rate": 1e-3},
        evaluation={"every": steps // 25, "batches": 2},
        checkpoint={"every": steps // 20, "keep_last": 3, "keep_every": steps // 2},
    )
    trainer = Trainer(config)
    trainer.fit([*default_listeners(config), Gauge()])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=20000)
    given = parser.parse_args()
    main(given.folder, given.steps)

"""The screen stays free of what CUDA's stub logs where there is no driver, and of nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_command_that_looks_for_devices_logs_nothing():
    program = (
        "import sys; from jaxpar.cli import command\n"
        "@command()\ndef main(arguments):\n    import jax; jax.devices()\n"
        "sys.exit(main([]))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

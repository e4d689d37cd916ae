"""The screen stays free of what CUDA's stub logs where there is no driver, and of nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxpar.compiler.quiet import _without_noise

ROOT = Path(__file__).parents[2]


def test_a_command_that_looks_for_devices_logs_nothing():
    program = (
        "import sys; from jaxpar.cli import command\n"
        "@command()\ndef main(arguments):\n    import jax; jax.devices()\n"
        "sys.exit(main([]))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_other_lines_are_printed(capfd: pytest.CaptureFixture[str]):
    noise = "WARNING: All log messages before absl::InitializeLog() is called\nI0 1 2 cudart_stub.cc:31] no drivers\n"

    @_without_noise()
    def fails() -> None:
        os.write(2, f"{noise}E0 1 2 other.cc:5] out of order\n".encode())
        raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert capfd.readouterr().err == "E0 1 2 other.cc:5] out of order\n"

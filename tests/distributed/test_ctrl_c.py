"""Ctrl-C on the command line, while the main thread does something that no handler of Python interrupts."""

import signal
import subprocess
import sys

from tests.patience import seconds

BUSY = """
import hashlib, signal
from jaxpar.distributed.ctrl_c import exit_at_second_signal
signal.signal(signal.SIGINT, lambda *_: None)  # may run before the call begins, which it must not prevent
with exit_at_second_signal():
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)
"""


def test_a_second_ctrl_c_ends_a_process_that_cannot_be_interrupted():
    command = [sys.executable, "-c", BUSY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        first = process.stderr.readline()
        assert first.startswith("jaxpar: Ctrl-C: ") and "a second Ctrl-C" in first
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, second = process.communicate(timeout=seconds(30))
    assert process.returncode == 130
    assert second.startswith("jaxpar: ") and "the same command continues from the newest checkpoint" in second

"""Eight virtual CPU devices for every test, what runs when, what it took, and memory that is given back."""

import ctypes
import gc
import os
import resource
import signal
from pathlib import Path

import pytest

from jaxpar.compiler.quiet import quiet_imports
from jaxpar.hardware.virtual_devices import keep_freed_memory
from tests import patience, selection
from tests.selection import Selection
from tests.spent import Spent

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 "
    "--xla_cpu_collective_call_terminate_timeout_seconds=600 --xla_cpu_collective_timeout_seconds=600 "
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=300"
)
os.environ["PJRT_NPROC"] = "32"  # threads: see jaxpar/hardware/virtual_devices.py
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# A shell's background job ignores Ctrl-C, and so would every process that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

keep_freed_memory()  # also what tests compute that do not prepare devices
quiet_imports()  # the first test that looks for devices is not the one that CUDA's stub writes to

LONGEST = 600
"""Seconds; a test that asks for a longer limit is among the longest."""
LIMIT = 300
"""Seconds after which a test has hung, on a quiet machine."""
LET_GO_MIB = 1500
"""The memory that a worker may hold when it goes on to another file; beyond it, compiled programs are dropped."""


def pytest_addoption(parser: pytest.Parser) -> None:
    selection.add_options(parser)
    recording = "note in tests/seconds.json what long and slow tests took"
    parser.getgroup("jaxpar").addoption("--record-seconds", action="store_true", help=recording)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("timeout") is None:
        config.option.timeout = patience.seconds(LIMIT)
    config.pluginmanager.register(Selection(config), "selection")
    config.pluginmanager.register(Spent(config), "spent")


def pytest_report_header(config: pytest.Config) -> list[str]:
    chosen: Selection = config.pluginmanager.get_plugin("selection")
    slow = patience.slowness()
    machine = (
        "" if slow < 1.5 else f"; this machine is {slow:.1f} times slower than a quiet one, and limits as much longer"
    )
    return [f"{chosen.before()}{machine}"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest, so that at the end no worker waits for another that has just begun with one.

    Limits that tests ask for themselves grow with the machine, as the common one does.
    """

    def limit(item: pytest.Item) -> float:
        marker = item.get_closest_marker("timeout")
        asked = float(marker.args[0]) if marker else 0.0
        if asked:
            item.add_marker(pytest.mark.timeout(patience.seconds(asked)), append=False)
        return asked if asked > LONGEST else 0.0

    items.sort(key=limit, reverse=True)


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Between files, a large worker drops what it has compiled."""
    if (nextitem is not None and nextitem.path == item.path) or _resident_mib() < LET_GO_MIB:
        return
    import jax

    jax.clear_caches()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def _resident_mib() -> int:
    """Memory of this process that is in use now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20

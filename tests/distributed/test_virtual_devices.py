"""What XLA:CPU's client has when several virtual devices stand in for GPUs. In processes of their own."""

import pytest

from jaxpar.hardware.virtual_devices import THREADS_VARIABLE, threads_for
from tests.processes import run_python

COUNTED = """
import jax
from pathlib import Path
from jaxpar.config import DistributedConfig
from jaxpar.distributed.devices import prepare_devices

prepare_devices({needed}, DistributedConfig())
jax.block_until_ready(jax.numpy.ones(2) + 1)
print(len(jax.devices()), sum("XLAEigen" in (task / "comm").read_text() for task in Path("/proc/self/task").iterdir()))
"""


def counted(needed: int, **given: str) -> list[int]:
    """Devices, and threads of the pool, of a process that prepares `needed` devices."""
    program = COUNTED.replace("{needed}", str(needed))
    done = run_python("-c", program, without=("XLA_FLAGS", THREADS_VARIABLE), **given)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


@pytest.mark.parametrize(("own", "threads"), [(None, threads_for(4)), ("5", 5)], ids=["ours", "the user's"])
def test_collectives_that_wait_leave_threads_for_those_that_they_wait_for(own: str | None, threads: int):
    """With one thread a device, a pipeline with branches stops for ever: each waits, and none is left to arrive."""
    asked = {} if own is None else {THREADS_VARIABLE: own}
    assert counted(4, **asked) == [4, max(threads, 4)]


def test_the_users_number_of_devices_decides_how_many_threads_there_are():
    """A mesh axis of -1 needs one device at least, and takes the four."""
    assert counted(1, XLA_FLAGS="--xla_force_host_platform_device_count=4") == [4, threads_for(4)]


FREED = """
import ctypes, resource
from jaxpar.config import DistributedConfig
from jaxpar.distributed.devices import prepare_devices

prepare_devices(1, DistributedConfig())
libc, size = ctypes.CDLL(None), 2**26
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    libc.free(ctypes.memset(libc.malloc(size), 1, size))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(faults(), faults())
"""


def test_the_pages_of_memory_that_was_freed_are_used_again():
    """The kernel gives and clears pages of 64 MiB once, whether of 4 KiB or of 2 MiB."""
    done = run_python("-c", FREED)
    assert done.returncode == 0, done.stderr
    first, second = map(int, done.stdout.split())
    assert first >= 2**26 >> 21 and second < first / 8

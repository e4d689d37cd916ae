"""Memory of a process on CPU devices, which report none of their own."""

import mmap

from jaxpar.observe import memory


def test_without_device_statistics_it_is_the_memory_of_the_process() -> None:
    assert memory.memory_kind() == "host"
    assert 0 < memory.bytes_in_use() <= memory.peak_bytes() + 2**20


def test_bytes_in_use_follow_what_is_held_and_the_peak_stays() -> None:
    size = 256 * 2**20
    before = memory.bytes_in_use()
    held = mmap.mmap(-1, size)  # the C library would keep what is freed
    held.write(bytes(size))
    during = memory.bytes_in_use()
    held.close()
    after = memory.bytes_in_use()
    assert during - before > 0.9 * size and during - after > 0.9 * size
    assert memory.peak_bytes() >= during - 2**20


def test_with_device_statistics_it_is_the_fullest_device(monkeypatch) -> None:
    class Device:
        def __init__(self, now: int, peak: int) -> None:
            self.stats = {"bytes_in_use": now, "peak_bytes_in_use": peak}

        def memory_stats(self) -> dict[str, int]:
            return self.stats

    monkeypatch.setattr(memory.jax, "local_devices", lambda: [Device(3, 10), Device(5, 9)])
    assert (memory.memory_kind(), memory.bytes_in_use(), memory.peak_bytes()) == ("device", 5, 10)

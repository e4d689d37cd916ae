"""What Mosaic GPU's simulator does not watch by itself: what the tensor cores read, and when.

Its race detection knows reads and writes of values and of TMA, but a wgmma reads its operands unnoticed and at once.
Here they are reads of the asynchronous proxy, as on a device, which are over when an accumulator is loaded that waits
for them: what is written there and not ordered after that is a race, whether or not it spoils a number in this run.
"""

import time
from collections import Counter
from typing import Any

import jax
import numpy as np
import pytest
from jax._src import source_info_util
from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks, shared_memory

REPORTED = "RACE DETECTED"
"""What the simulator prints."""


def watch_tensor_cores(
    monkeypatch: pytest.MonkeyPatch, late_in: str = "", seconds: float = 0.0, in_flight: int | None = None
) -> None:
    """Register what wgmma reads; the second consumer issues those of function `late_in` so much later.

    `in_flight` is for kernels that wait for all products but so many after each, which the simulator overlooks: the
    reads of the ones before are over then. No accumulator is loaded before its products are over.
    """
    issue, load = gpu_callbacks.wgmma, gpu_callbacks.wgmma_accumulator_deref
    issued: Counter[Any] = Counter()
    under_way: dict[Any, list[tuple[Any, Any]]] = {}

    def wait(thread: Any, left: int) -> None:
        """Until so many products of a warpgroup are left, which end in their order."""
        memory, products = gpu_callbacks._get_shared_memory(), under_way.setdefault(thread, [])
        while len(products) > left:
            with memory.lock:
                memory.clocks[thread].update(products.pop(0)[1])

    def wgmma(*, thread: Any, source_info: Any, **given: Any) -> Any:
        if seconds and thread.warpgroup_id == 1 and late_in in source_info_util.summarize(source_info):
            time.sleep(seconds)
        result = issue(thread=thread, source_info=source_info, **given)
        memory = gpu_callbacks._get_shared_memory()
        clock = memory.get_clock(thread)
        assert clock is not None, "races are not watched for"
        # A warpgroup's products end in their order: they count in the place of one of its warps, which has no thread.
        warp = shared_memory.Warp(thread.device_id, thread.cluster_id, thread.block_id, thread.warpgroup_id, 0)
        place = memory.thread_to_vc_position(warp)
        issued[thread] += 1
        for proxy in (clock.generic_clock, clock.async_smem_clock):
            proxy.clock[place] = issued[thread]
        for name in "ab":
            key = shared_memory.HostAllocationKey.from_array(given[f"{name}_allocation_key_as_array"])
            indices = jax.tree.map(int, gpu_callbacks._remove_noop_transforms(given[f"{name}_transforms"]))
            where, read_at = memory.access(key, indices), clock.async_smem_clock.copy()
            gpu_callbacks.get_races().check_read(thread, read_at, key, where, source_info=source_info)
        under_way.setdefault(thread, []).append((accumulator(given), clock))
        if in_flight is not None:
            wait(thread, in_flight)
        return result

    def accumulator_deref(**given: Any) -> Any:
        wait(given["thread"], given["wait_n"])
        assert all(one != accumulator(given) for one, _ in under_way[given["thread"]]), "loaded before it is over"
        return load(**given)

    def accumulator(given: dict[str, Any]) -> tuple[int, ...]:
        return tuple(np.asarray(given["acc_allocation_key_as_array"]).ravel().tolist())

    monkeypatch.setattr(gpu_callbacks, "wgmma", gpu_callbacks.fail_on_exception(wgmma))
    monkeypatch.setattr(gpu_callbacks, "wgmma_accumulator_deref", gpu_callbacks.fail_on_exception(accumulator_deref))

"""Batches that come late on a machine of any speed: devices still at work would hide a pause of fixed length."""

import time

import jax

MOST = 5.0
"""Seconds; the first step takes long because it is compiled."""


class Late:
    """Call it before each batch: it sleeps at least `seconds`, and as long as the last step took where that is more."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.came = time.monotonic()

    def __call__(self) -> None:
        jax.block_until_ready(jax.live_arrays())
        time.sleep(max(self.seconds, min(MOST, time.monotonic() - self.came)))
        self.came = time.monotonic()

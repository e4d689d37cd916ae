"""GPUs that differ from one of the catalogue in memory, bandwidth or power cap."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated

from jaxpar.config.errors import UserError
from jaxpar.hardware.catalogue import GPU, GPUS, gpu_named
from jaxpar.hardware.power import capped
from jaxpar.hardware.sources import chosen, cited
from jaxpar.pages.units import GIB, TERA


@dataclass(frozen=True)
class Variant:
    """Differences of a GPU from one of the catalogue; None for equal values."""

    memory_gib: float | None = None
    bandwidth: float | None = None
    """Bytes per second of its memory."""
    watts: float | None = None
    """Power cap in watts."""

    def over(self, other: Variant) -> Variant:
        """This variant, with missing values taken from another."""
        return Variant(
            *(mine if mine is not None else theirs for mine, theirs in zip(_values(self), _values(other), strict=True))
        )


KNOWN: Annotated[dict[str, Variant], cited("pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md")] = {
    "h100-96": Variant(96, 2.4 * TERA, 500),
}
"""Variants that published runs name: H100-96GB has HBM2e and a cap of 500 W."""

ALIKE: Annotated[float, chosen("a tolerance of names")] = 0.02
"""Share by which a memory in a name may differ from a GPU's."""

_FORM = re.compile(r"(?:nvidia[\s-]+)?([a-z]+\d+s?|rtx\s?\d+)(?:-sxm\d?|\s+sxm\d?)?(?:[-\s](\d+)(?:gi?b)?)?")


def variant(name: str, stated: Variant = Variant()) -> tuple[GPU, list[str]]:
    """The GPU that a row of a file names, `H100-96GB` for example, and what had to be assumed of it.

    Args:
        name: as the file writes it.
        stated: what other columns give.

    Raises:
        UserError: the catalogue has no GPU of this family.
    """
    gpu, known, assumed = _family(name.strip().lower())
    merged = stated.over(known)
    if known.memory_gib is not None and known.bandwidth is None and stated.bandwidth is None:
        assumed.append(f"{name}: the memory bandwidth of {gpu.name}")
    if known.watts is not None and stated.watts is None:
        assumed.append(f"{name}: a cap of {known.watts:g} W")
    if merged.memory_gib is not None:
        share = gpu.device_bytes / gpu.hbm_bytes
        total_bytes = round(merged.memory_gib * GIB)
        gpu = replace(gpu, hbm_bytes=total_bytes, device_bytes=round(total_bytes * share))
    if merged.bandwidth is not None:
        gpu = replace(gpu, hbm_bandwidth=merged.bandwidth)
    if merged.watts is not None:
        gpu = capped(gpu, merged.watts)
    return gpu, assumed


def _family(name: str) -> tuple[GPU, Variant, list[str]]:
    """The GPU of the catalogue that a name is nearest to, and how it differs."""
    try:
        return gpu_named(name), Variant(), []
    except UserError:
        parts = _FORM.fullmatch(name)
        if parts is None:
            raise
    family = re.sub(r"\s", "", parts[1])
    alike = [gpu for gpu in GPUS if gpu.short == family or gpu.short.startswith(f"{family}-")]
    if not alike:
        gpu_named(name)  # raises, with the nearest name
    if parts[2] is None:
        gpu = max(alike, key=lambda one: one.hbm_bytes)
        return gpu, Variant(), [f"{name}: {gpu.name}"] if len(alike) > 1 else []
    memory = float(parts[2])
    gpu = min(alike, key=lambda one: abs(one.hbm_bytes / GIB - memory))
    if abs(gpu.hbm_bytes / GIB - memory) < ALIKE * memory:
        return gpu, Variant(), []
    return gpu, KNOWN.get(f"{family}-{parts[2]}", Variant(memory)), []


def _values(one: Variant) -> Iterable[float | None]:
    return one.memory_gib, one.bandwidth, one.watts

"""The result of one compile: the program, XLA's memory statistics, its dumps as texts, and how they were made."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

from jaxpar.config.plan import Plan
from jaxpar.config.reading.typed import record_from_plain


@dataclass(frozen=True)
class MemoryNumbers:
    """Bytes on each GPU by XLA's own count (`jax.stages.Compiled.memory_analysis`)."""

    argument: int
    """The input: state and batch."""
    output: int
    """The output: new state and metrics."""
    alias: int
    """The part of the output that reuses buffers of the arguments (donated)."""
    temp: int
    """Temporaries: live within the step only."""
    peak: int
    """The most live bytes at one time, arguments and outputs included."""
    total_allocation: int
    """Sum of all allocations: what the program reserves."""
    host_argument: int
    """On the host, in pinned memory, per GPU; the next three likewise."""
    host_output: int
    host_alias: int
    host_temp: int


@dataclass(frozen=True)
class Compilation:
    """A training step compiled by XLA for a cluster. It is one SPMD program, so it is the same for every rank."""

    cluster: str
    """The cluster as the user wrote it."""
    gpu: str
    """Short name of the GPU that it was compiled for."""
    hosts: int
    gpus_per_host: int
    plan: Plan
    """The layout that a run on the cluster has."""
    notes: tuple[str, ...]
    """Where the compiled program differs from the one that will run, and why; empty when it does not."""
    inputs: tuple[str, ...]
    """Name of each parameter of the program, by its number: `master/layers/all/mlp/gate`, `optimizer/mu/...`, `step`,
    `batch/tokens`."""
    program: str
    """The scheduled program (HLO text)."""
    buffer_assignment: str
    """XLA's text: which value is in which allocation, at which offset."""
    live_ranges: str
    """XLA's text: the order of instructions, and when each buffer is alive."""
    memory: MemoryNumbers
    xla_flags: tuple[str, ...]
    versions: dict[str, str]
    """Versions of jax, jaxlib, the plugin, ptxas, cuDNN (when it is installed), and a digest of jaxpar's source."""
    compile_seconds: float
    """Tracing, lowering and XLA, on the machine that compiled."""

    def to_json(self) -> str:
        """The compilation as JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Compilation:
        """The inverse of `to_json`, for text that this version of jaxpar wrote."""
        plain = json.loads(text)
        return Compilation(
            **{
                **plain,
                "plan": record_from_plain(Plan, plain["plan"], "plan"),
                "memory": MemoryNumbers(**plain["memory"]),
                **{key: tuple(plain[key]) for key in ("notes", "inputs", "xla_flags")},
            }
        )

    def save(self, path: Path) -> None:
        """Write compressed JSON; a concurrent reader sees the old file or the new one."""
        partial = path.with_name(f"{path.name}.{uuid4().hex}")
        partial.write_bytes(gzip.compress(self.to_json().encode(), compresslevel=6))
        partial.replace(path)

    @staticmethod
    def load(path: Path) -> Compilation:
        """Read a file of `save`."""
        return Compilation.from_json(gzip.decompress(path.read_bytes()).decode())

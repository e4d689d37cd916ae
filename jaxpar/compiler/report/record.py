"""The report of a step on a cluster, as plain numbers that are written to JSON unchanged."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class Collective:
    """The transfers of a step that are equal in the first five fields, summed. Bytes are those that one GPU sends."""

    axis: str
    """Mesh axes joined by `+`, or `host` for moves between device and host."""
    collective: str
    """The collective of `mesh/collectives.py` that asked for it; `-` if none did."""
    kind: str
    """XLA's collective, or `to_host` and `from_host`."""
    dtype: str
    """Dtype on the wire."""
    crosses_nodes: bool
    count: float
    """Executions in a step, over all iterations of loops. XLA may have combined several arrays into one transfer."""
    bytes: float
    """Bytes per step, by the formula of the collective."""
    seconds: float
    """Time on its link, per step."""
    enclosed_s: float
    """Time of the compute between start and done, per step; overlapping transfers each include all of theirs."""
    exposed_s: float
    """The part of `seconds` that no compute hides."""


@dataclass(frozen=True)
class Exposure:
    """One transfer that compute waits for; times are of one execution."""

    axis: str
    collectives: str
    """Joined by `+` where XLA combined several."""
    kind: str
    source: str
    """`file:line` of the code that asked for it."""
    count: float
    """Executions in a step."""
    synchronous: bool
    """Whether nothing can overlap it: XLA gave it no start and done."""
    seconds: float
    """Time on its link."""
    enclosed_s: float
    """Time of the compute between start and done."""
    exposed_s: float
    """The part of `seconds` that no compute hides."""


@dataclass(frozen=True)
class LiveBuffer:
    """A large buffer that is alive at the peak."""

    name: str
    """Path in the state of an input, otherwise XLA's name of the value."""
    bytes: int
    shape: str
    memory_class: str
    source: str
    """`file:line` of the code that computed it; empty for inputs."""


@dataclass(frozen=True)
class Report:
    """Facts and predictions from the compiled program, per GPU; only `compile_seconds` was measured."""

    config: str
    cluster: str
    gpu: str
    devices: int
    axes: dict[str, int]
    notes: tuple[str, ...]
    """Where the compiled program differs from the one that will run, and other caveats."""
    fits: bool
    """Whether `allocated_bytes` and the reserve fit into the device's memory."""
    device_bytes: int
    """Memory that CUDA reports to a program."""
    reserve_bytes: int
    """Reserved for the CUDA context, NCCL's buffers and libraries."""
    margin_bytes: int
    """Bytes that remain; negative if bytes are missing."""
    peak_bytes: int
    """The most bytes alive at one time on the device: XLA's count, or this report's own if XLA's includes the host."""
    allocated_bytes: int
    """Bytes that XLA reserves on the device: temporaries are in one block, a little larger than the peak."""
    host_bytes: int
    """Pinned memory of the host."""
    classes: dict[str, int]
    """Bytes at the peak by memory class; `host` is memory of the host, and not part of the peak."""
    collectives: tuple[Collective, ...]
    """The collectives, largest traffic first."""
    exposures: tuple[Exposure, ...]
    """The transfers with the longest exposed times, the longest first."""
    flops: float
    """FLOPs of matrix products in a step, recomputation included."""
    flops_by_kind: dict[str, float]
    recompute_flops: float
    """The part of `flops` that repeats the forward pass, or that XLA itself repeats to save memory."""
    compiler_recomputes: int
    """Number of kernels and transfers that XLA itself runs again, because memory was short; 0 is normal."""
    compute_seconds: float
    """Time of all kernels of a step, each alone on the GPU."""
    slowed_seconds: float
    """Additional time of kernels because transfers between devices run beside them."""
    exposed_seconds: float
    """Time of transfers that no compute hides."""
    seconds_by_kind: dict[str, float]
    """Time by kind of kernel."""
    lost_by_part: dict[str, float]
    """Time that transfers add, exposed or by slowing compute, by kind of transfer (`data`, `tensor`, ...)."""
    largest_buffers: tuple[LiveBuffer, ...]
    compile_seconds: float
    float8_flops: float = 0.0
    """The part of `flops` with 8-bit operands, which is timed at the 8-bit rate."""
    utilisation: dict[str, float] = field(default_factory=dict)
    """Model FLOPs utilisation (`jaxpar.model.flops`) of the step, by the dtype of the dense peak that it refers to:
    `bfloat16`, and `float8` if products run in FP8."""
    suggestion: str = ""
    """The nearest settings that fit, in words, if these do not."""

    @property
    def all_seconds_by_kind(self) -> dict[str, float]:
        """Time of a step by kind of kernel, and by part that waits for transfers."""
        return self.seconds_by_kind | self.lost_by_part

    @property
    def step_seconds(self) -> float:
        """Time of a step, at the assumed speeds of the GPU and its links."""
        return self.compute_seconds + self.slowed_seconds + self.exposed_seconds

    @property
    def exposed_fraction(self) -> float:
        """Share of the step that transfers add: exposed time, and slower compute beside them."""
        return (self.slowed_seconds + self.exposed_seconds) / self.step_seconds if self.step_seconds else 0.0

    def to_dict(self) -> dict[str, object]:
        """Returns the report as plain containers, for JSON."""
        return {**asdict(self), "step_seconds": self.step_seconds, "exposed_fraction": self.exposed_fraction}

"""The report of a step on a cluster, as plain numbers that are written to JSON unchanged."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class Collective:
    """All transfers of a step with equal first five fields. Bytes are those that one GPU sends."""

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
    """Executions in a step, loops multiplied out. XLA may have joined several arrays in one."""
    bytes: float
    """In a step, by the formula of the collective."""
    seconds: float
    """Time on its link, in a step."""
    enclosed_s: float
    """Time of the compute between start and done, in a step; of overlapping transfers each counts its own."""
    exposed_s: float
    """The part of `seconds` that no compute hides."""


@dataclass(frozen=True)
class Exposure:
    """One transfer of the program that is waited for; times are of one execution."""

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
    needs_s: float
    enclosed_s: float
    exposed_s: float


@dataclass(frozen=True)
class LiveBuffer:
    """A large buffer at the peak."""

    name: str
    """Path in the state of an input, otherwise XLA's name of the value."""
    bytes: int
    shape: str
    memory_class: str
    source: str
    """`file:line` of the code that computed it; empty for inputs."""


@dataclass(frozen=True)
class Report:
    """Read from the compiled program, per GPU; nothing in it was measured but `compile_seconds`."""

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
    """Kept for the CUDA context, NCCL's buffers and libraries."""
    margin_bytes: int
    """Bytes that remain; below 0 those that are missing."""
    peak_bytes: int
    """The most bytes alive at one time, by the compiler's own count."""
    allocated_bytes: int
    """Bytes that XLA reserves on the device: temporaries are in one block, a little larger than the peak."""
    host_bytes: int
    """Pinned memory of the host."""
    classes: dict[str, int]
    """Bytes at the peak; `host` comes on top."""
    collectives: tuple[Collective, ...]
    """The collectives, largest traffic first."""
    exposures: tuple[Exposure, ...]
    """The transfers that are waited for longest, the worst first."""
    flops: float
    """FLOPs of matrix products in a step, recomputation included."""
    flops_by_kind: dict[str, float]
    recompute_flops: float
    """The part of `flops` that repeats the forward pass, or that XLA itself repeats to save memory."""
    compiler_recomputes: int
    """Kernels and transfers that XLA itself runs again, because memory was short; 0 is normal."""
    compute_seconds: float
    """Time of all kernels of a step, each alone on the GPU."""
    slowed_seconds: float
    """Time that kernels take longer because transfers between devices run beside them."""
    exposed_seconds: float
    """Time of transfers that no compute hides."""
    seconds_by_kind: dict[str, float]
    """Time by kind of kernel."""
    lost_by_part: dict[str, float]
    """Time that transfers cost, exposed or of compute beside them, by part of a predicted step."""
    largest_buffers: tuple[LiveBuffer, ...]
    compile_seconds: float
    float8_flops: float = 0.0
    """The part of `flops` whose operands have 8 bits; its time is at the rate of these."""
    utilisation: dict[str, float] = field(default_factory=dict)
    """Model FLOPs utilisation (`jaxpar.model.flops`) of such a step, by the type whose dense peak it is a share of:
    `bfloat16`, and `float8` where products run in FP8."""
    way_out: str = ""
    """The nearest settings that fit, in words, where these do not."""

    @property
    def all_seconds_by_kind(self) -> dict[str, float]:
        """Time of a step by kind of kernel, and by part that waits for transfers."""
        return self.seconds_by_kind | self.lost_by_part

    @property
    def step_seconds(self) -> float:
        """Time of a step, at the speeds that the GPU and its links are taken to reach."""
        return self.compute_seconds + self.slowed_seconds + self.exposed_seconds

    @property
    def exposed_fraction(self) -> float:
        """Share of the step that transfers cost: those that are exposed, and the time that others take from compute."""
        return (self.slowed_seconds + self.exposed_seconds) / self.step_seconds if self.step_seconds else 0.0

    def to_dict(self) -> dict[str, object]:
        """Returns the report as plain containers, for JSON."""
        return {**asdict(self), "step_seconds": self.step_seconds, "exposed_fraction": self.exposed_fraction}

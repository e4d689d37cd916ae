"""A compilation, parsed once: the program, its costs, its transfers with times, and its memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

from jaxpar.compiler.compilation import Compilation
from jaxpar.compiler.program.attribution import Movement, movements
from jaxpar.compiler.program.costs.ops import Cost, costs
from jaxpar.compiler.program.from_program import Schedule, schedule
from jaxpar.compiler.program.hlo.parser import parse
from jaxpar.compiler.program.hlo.records import Module
from jaxpar.compiler.program.loops import Executions, executions
from jaxpar.compiler.program.memory.buffers import Buffers, parse_buffers, peak
from jaxpar.compiler.report.memory_classes import MemoryClasses
from jaxpar.compiler.report.step_timer import StepTimer
from jaxpar.compiler.stand_in import attention_of
from jaxpar.cost.hardware_model import HardwareModel, hardware_of
from jaxpar.hardware.catalogue import gpu_named
from jaxpar.hardware.cluster import Cluster
from jaxpar.hardware.xla_flags import collectives_at_a_time


@dataclass(frozen=True, eq=False)
class Analysis:
    """Everything that reports and pages need; each part is computed on first use."""

    compilation: Compilation
    cluster: Cluster
    hardware: HardwareModel | None = None
    """Parameters of GPUs and links; None means those of the GPU."""

    @cached_property
    def module(self) -> Module:
        """The scheduled program, parsed."""
        return parse(self.compilation.program)

    @cached_property
    def counts(self) -> Executions:
        """The number of times that each computation runs in a step."""
        return executions(self.module)

    @cached_property
    def movements(self) -> list[Movement]:
        """All transfers of the program."""
        return movements(self.module, self.counts, dict(self.compilation.plan.axes), self.compilation.gpus_per_host)

    @cached_property
    def costs(self) -> list[Cost]:
        """The costs of all kernels and transfers of the program."""
        return costs(self.module, self.counts, attention=attention_of(self.compilation.plan))

    @cached_property
    def timer(self) -> StepTimer:
        """The timer of the GPU that the program was compiled for."""
        gpu = gpu_named(self.compilation.gpu)
        return StepTimer(gpu, self.cluster, hardware_of(gpu) if self.hardware is None else self.hardware)

    @cached_property
    def schedule(self) -> Schedule:
        """The program on the clock: transfers with the compute that overlaps them, one in flight at a time or, where
        several may be, on each kind of link."""
        several = collectives_at_a_time(self.compilation.xla_flags, self.compilation.plan.collectives_at_once) > 1
        return schedule(
            self.module, self.movements, {cost.op.name: self.timer.kernel(cost) for cost in self.costs},
            self.timer.transfer, self.timer.model.overlap_slowdown, attrgetter("link" if several else "channel"),
            {cost.op.name: cost.kind for cost in self.costs},
        )  # fmt: skip

    @cached_property
    def buffers(self) -> Buffers:
        """Where each value is, and when."""
        return parse_buffers(self.compilation.buffer_assignment, self.compilation.live_ranges)

    @cached_property
    def peak(self) -> tuple[int, int]:
        """The place in the program's order at which most of the device's memory is live, and the bytes."""
        return peak(self.buffers)

    @cached_property
    def classes(self) -> MemoryClasses:
        """The classes of values in memory."""
        return MemoryClasses(self.module, self.buffers, self.compilation.inputs)

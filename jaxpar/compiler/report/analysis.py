"""A compilation read once: the program, its costs, its transfers against the clock, and its memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from jaxpar.compiler.compilation import Compilation
from jaxpar.compiler.program.attribution import Movement, movements
from jaxpar.compiler.program.buffers import Buffers, parse_buffers
from jaxpar.compiler.program.costs import Cost, Roofline, costs
from jaxpar.compiler.program.loops import Executions, executions
from jaxpar.compiler.program.memory import peak
from jaxpar.compiler.program.parser import parse
from jaxpar.compiler.program.records import Module
from jaxpar.compiler.program.schedule import Schedule, schedule
from jaxpar.compiler.report.clock import roofline_of, transfer_seconds
from jaxpar.compiler.report.memory_classes import MemoryClasses
from jaxpar.hardware.catalogue import gpu_named
from jaxpar.hardware.cluster import Cluster


@dataclass(frozen=True, eq=False)
class Analysis:
    """Everything that reports and pages are made from; each part is computed when it is first asked for."""

    compilation: Compilation
    cluster: Cluster

    @cached_property
    def module(self) -> Module:
        """The scheduled program."""
        return parse(self.compilation.program)

    @cached_property
    def counts(self) -> Executions:
        """How often each computation runs in a step."""
        return executions(self.module)

    @cached_property
    def movements(self) -> list[Movement]:
        """All transfers."""
        return movements(self.module, self.counts, dict(self.compilation.plan.axes), self.compilation.gpus_per_host)

    @cached_property
    def costs(self) -> list[Cost]:
        """All kernels."""
        return costs(self.module, self.counts)

    @cached_property
    def roofline(self) -> Roofline:
        """The GPU that the program was compiled for."""
        return roofline_of(gpu_named(self.compilation.gpu))

    @cached_property
    def kernel_seconds(self) -> dict[str, float]:
        """Roofline time of one execution of each kernel, by name of its op."""
        return {cost.op.name: self.roofline.seconds(cost) for cost in self.costs}

    @cached_property
    def kinds(self) -> dict[str, str]:
        """Kind of each kernel (`costs.KINDS`), by name of its op."""
        return {cost.op.name: cost.kind for cost in self.costs}

    def seconds(self, movement: Movement) -> float:
        """Time of one execution of a transfer on its link."""
        return transfer_seconds(movement, self.cluster)

    @cached_property
    def schedule(self) -> Schedule:
        """Transfers against the compute beside them."""
        return schedule(self.module, self.movements, self.costs, self.roofline, self.seconds)

    @cached_property
    def buffers(self) -> Buffers:
        """Which value lies where, and when."""
        return parse_buffers(self.compilation.buffer_assignment, self.compilation.live_ranges)

    @cached_property
    def peak(self) -> tuple[int, int]:
        """The place in the program's order at which most of the device's memory is live, and the bytes."""
        return peak(self.buffers)

    @cached_property
    def classes(self) -> MemoryClasses:
        """What memory holds."""
        return MemoryClasses(self.module, self.buffers, self.compilation.inputs)

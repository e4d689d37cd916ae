"""A run before its first step: configuration, devices, data, plan, and the step, compiled when it is first used."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

import jax

from jaxpar.checkpoint.same_program import check_program, name_sources_alike
from jaxpar.config import Config, UserError, load_config, virtual_devices_needed
from jaxpar.config.axes import fixed_devices
from jaxpar.config.parts import OBJECTIVES, implementation
from jaxpar.config.plan import Plan
from jaxpar.data import Data, open_data
from jaxpar.distributed import liveness
from jaxpar.distributed.devices import Device, check_devices, devices_per_node, find_devices, prepare_devices
from jaxpar.hardware.catalogue import gpu_of
from jaxpar.layers.declaration.adaptation import adaptation_of
from jaxpar.layout.checks.spikes import refuse_spikes
from jaxpar.layout.checks.validate import validate
from jaxpar.layout.given_plan import check_plan, check_plan_devices
from jaxpar.layout.make_plan import make_plan, resolve_config, with_vocab
from jaxpar.layout.memory.device import needed_bytes
from jaxpar.layout.memory.host import check_offload
from jaxpar.layout.memory.state_storage import check_offloaded_state
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.build import build_mesh
from jaxpar.model.flops import Pairs, flops_per_step
from jaxpar.observe.timer import StepTimer
from jaxpar.runtime.batch import BatchPlacer
from jaxpar.training.residency.saved_state import SavedState
from jaxpar.training.run.agreed import compared_plan
from jaxpar.training.run.batches import baseline, evaluates
from jaxpar.training.run.out_of_memory import (
    check_batch_fits,
    check_estimate_fits,
    check_state_fits,
    check_step_fits,
    explained,
)
from jaxpar.training.run.reference import SourceModels, check_pairs, scorer_of
from jaxpar.training.step.train_step import TrainStep
from jaxpar.training.teacher import TeacherFiles, TeacherPass


class RunSetup:
    """Everything of a run but its state.

    Making one checks the configuration, opens the data and lays out the mesh; weights are made, and the step compiled,
    when they are first used. It writes no files.

    Args:
        config: a `Config`, or the path of a YAML file.
        overrides: `section.key=value`, as on the command line.
        devices: the devices of the mesh; by default all there are.
        plan: the layout, which is used as it is; by default it is made from the configuration for the devices.

    Raises:
        UserError: one sentence about what is wrong with the configuration or the data, or that the plan is of another
            configuration or cannot run on the devices.
    """

    def __init__(
        self,
        config: Config | str | Path,
        *,
        overrides: Sequence[str] = (),
        devices: Sequence[Device] | None = None,
        plan: Plan | None = None,
    ):
        if not isinstance(config, Config):
            config = load_config(str(config), overrides)
        elif overrides:
            raise UserError(
                "overrides: expected with the path of a file; a Config is changed by with_overrides(config, [...])"
            )
        validate(config)
        refuse_spikes(config)
        job = None
        if devices is None:
            job = prepare_devices(self.needed_devices(config), config.distributed)
        _use_compile_cache(config.run.compile_cache)
        liveness.report_activity("finding its devices")
        devices = self.training_devices(config, find_devices() if devices is None else list(devices))
        if job is not None:
            check_devices(job, fixed_devices(config.parallel), devices)
        if plan is not None:
            check_plan_devices(plan, devices)
        liveness.report_activity("opening its data", busy=True)
        config = resolve_config(config, len(devices), validated=True)
        self.data: Data = open_data(config.data, vocab=config.model.vocab, seed=self.data_seed(config))
        check_pairs(config, self.data)
        self.config = with_vocab(config, self.data.vocab)
        if jax.process_count() > 1:
            name_sources_alike()
        self.plan = compared_plan(lambda: self._planned(plan, devices), self.config, devices)
        self.mesh = build_mesh(self.plan.axes, devices)
        self.layout = StepLayout(self.config, self.plan)
        checks = check_state_fits, check_batch_fits, check_offload, check_offloaded_state, check_estimate_fits
        for check in checks:
            check(self.layout, self.mesh)
        self.functions = TrainStep(self.layout, self.mesh)
        self.placer = BatchPlacer(self.layout.batch, self.mesh)
        self.timer = StepTimer()
        self.models = SourceModels(self.layout)
        if (rows := OBJECTIVES[self.config.loss.name].rows) != "":
            self.data = implementation(rows)(self.config, self.data, self.models.reference)

    @classmethod
    def needed_devices(cls, config: Config) -> int:
        """Devices to simulate on a machine without accelerators."""
        return virtual_devices_needed(config.parallel)

    @classmethod
    def data_seed(cls, config: Config) -> int:
        """The seed of the order of the data."""
        return config.run.seed

    def training_devices(self, config: Config, devices: Sequence[Device]) -> list[Device]:
        """The devices of the training step, of all that there are."""
        del config
        return list(devices)

    def _planned(self, plan: Plan | None, devices: Sequence[Device]) -> Plan:
        """`plan`, checked; without one, a plan made for the devices."""
        if plan is None:
            return make_plan(self.config, devices[0], devices_per_node(devices))
        check_plan(plan, self.config, devices[0], devices_per_node(devices))
        return plan

    @cached_property
    def compiled(self) -> jax.stages.Compiled:
        """The compiled step. It never compiles again: an argument of another shape is an error."""
        with self.timer.compiling():
            state, batch = self.functions.residency.abstract_input(), self.layout.abstract_batch(self.mesh)
            lowered = self.functions.train.lower(state, batch, self.layout.abstract_arguments(self.mesh))
            check_program(lowered, "a step")
            with explained(self.layout, self.mesh):
                compiled = lowered.compile()
        check_step_fits(self.layout, self.mesh, needed_bytes(compiled))
        return compiled

    def compile_with_initial(self) -> None:
        """Compile the step, and on CPUs the program of the initial weights beside it, in another thread.

        On GPUs that comes later, when the weights are made: XLA times kernels there while it compiles.
        """
        if self.mesh.devices.flat[0].platform != "cpu":
            self.compiled  # noqa: B018 (compiles now)
            return
        with ThreadPoolExecutor(1, "initial-weights") as beside:
            initial = beside.submit(self.functions.residency.compile_initial)
            self.compiled  # noqa: B018 (compiles now)
            initial.result()

    @property
    def predicted_bytes(self) -> int | None:
        """Memory per device that the compiled step needs, by the compiler: arguments, temporaries and output."""
        return needed_bytes(self.compiled)

    def needed(self) -> int | None:
        """`predicted_bytes`, where the step is compiled already."""
        return self.predicted_bytes if "compiled" in vars(self) else None

    def baseline(self) -> float | None:
        """Loss of a bigram model on the validation batches, in nats per token; None where there are none, or pairs."""
        return baseline(self.config, self.data)

    @property
    def evaluates(self) -> bool:
        """Whether there is validation data and the configuration asks to use it."""
        return evaluates(self.config, self.data)

    @cached_property
    def saved(self) -> SavedState:
        """The state in the form of a checkpoint."""
        return self.functions.residency.saved()

    @cached_property
    def _teacher_pass(self) -> TeacherPass:
        teacher, devices = self.models.reference, list(self.mesh.devices.flat)
        assert teacher is not None, "a loss with a teacher names it"
        make = lambda: scorer_of(self.config, teacher, devices, self.config.loss.temperature)
        return TeacherPass(TeacherFiles(self.config, teacher), make)

    def flops(self, tokens: int, pairs: Pairs) -> float:
        """Model FLOPs of `tokens` tokens, whose masks have `pairs` pairs in all; rows are always full."""
        return flops_per_step(self.config.model, tokens, pairs, self.data.vocab, adaptation_of(self.config))

    @property
    def peak_flops(self) -> float | None:
        """Dense 16-bit peak of one device in FLOP/s (`GPU.training_peak`); None where the catalogue lacks it."""
        gpu = gpu_of(self.mesh.devices.flat[0].device_kind)
        return None if gpu is None else gpu.training_peak


def _use_compile_cache(folder: str | None) -> None:
    """Cache compiled programs on disk, unless the environment already names a folder."""
    if folder is None or jax.config.jax_compilation_cache_dir:
        return
    jax.config.update("jax_compilation_cache_dir", os.path.expanduser(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)

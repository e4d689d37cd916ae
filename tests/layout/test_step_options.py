"""Compiler options of a step."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from jax.sharding import Mesh

from jaxpar.compiler.compile import plan_for
from jaxpar.config import Config
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.hardware.described import DescribedGPU
from jaxpar.hardware.xla_flags import GATHERS, MEMORY_PERCENT, MERGED, OVERLAP_LIMIT, SCATTERS
from jaxpar.layout.compiler_choices import XLA_DEFAULT_PERCENT, with_host_buffers
from jaxpar.layout.memory.estimate import estimate_memory
from jaxpar.layout.step_options import CPU_OPTIONS, step_options
from tests.small_run import small

OFFLOADED = {"remat": {"preset": "full", "layer_input": "offload"}}


def config_of(**sections: Any) -> Config:
    sections = {"parallel": {"fsdp": 8}} | sections
    return small(precision={"compute": "bfloat16"}, attention={"backend": "xla"}, **sections)


def mesh_on(platform: str) -> Mesh:
    class Devices:
        flat = (SimpleNamespace(platform=platform),)

    mesh: Any = SimpleNamespace(devices=Devices)
    return mesh


def test_a_flag_of_the_users_counts_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    plan = plan_for(config_of(), parse_cluster("h100:1x8"))[1]
    assert step_options(plan, mesh_on("cpu")) == CPU_OPTIONS
    both = {GATHERS: plan.joined_gathers, SCATTERS: plan.joined_scatters}
    assert step_options(plan, mesh_on("gpu")) == both
    assert step_options(replace(plan, merged_matmuls_mb=0), mesh_on("gpu")) == both | {MERGED: 0}
    monkeypatch.setenv("XLA_FLAGS", f"--xla_foo=1 --{GATHERS}=7")
    assert step_options(plan, mesh_on("gpu")) == {SCATTERS: plan.joined_scatters}
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=3")
    assert step_options(plan, mesh_on("cpu")) == {}


def test_a_run_may_have_several_collectives_in_flight():
    """Weights are then gathered in parts, so that they are beside messages of tensor ranks."""
    two = {"fsdp": 2, "tensor": 4, "overlap": {"collectives_at_once": 2}}
    plan = plan_for(config_of(parallel=two), parse_cluster("h100:1x8"))[1]
    assert step_options(plan, mesh_on("gpu"))[OVERLAP_LIMIT] == 2
    assert plan.weight_prefetch.name == "parts"
    alone = plan_for(config_of(parallel={"fsdp": 2, "tensor": 4}), parse_cluster("h100:1x8"))[1]
    assert OVERLAP_LIMIT not in step_options(alone, mesh_on("gpu"))
    assert alone.weight_prefetch.name == "layer"


def test_there_are_none_where_nothing_is_gathered_and_nothing_on_the_host():
    plan = plan_for(config_of(parallel={"replica": 4, "tensor": 2}), parse_cluster("h100:1x8"))[1]
    assert step_options(plan, mesh_on("gpu")) == {}


def test_xla_has_what_it_would_have_of_the_device_and_what_is_on_the_host():
    filled, plan = plan_for(config_of(memory=OFFLOADED), parse_cluster("h100:1x8"))
    estimate = estimate_memory(filled, plan)
    usable = 10**6 + estimate.optimizer
    device = DescribedGPU.from_gpu(parse_cluster("h100:1x8").gpu)
    percent = with_host_buffers(filled, plan, device, lambda: usable).memory_percent
    assert percent is not None
    beside = percent * 10**4 - estimate.host
    assert XLA_DEFAULT_PERCENT * 10**4 <= beside < (XLA_DEFAULT_PERCENT + 1) * 10**4
    assert step_options(replace(plan, memory_percent=percent), mesh_on("gpu"))[MEMORY_PERCENT] == percent


def test_it_counts_as_ever_without_activations_on_the_host_and_on_cpu_devices():
    for config in (config_of(), config_of(memory={"optimizer_offload": "host"})):
        assert plan_for(config, parse_cluster("h100:1x8"))[1].memory_percent is None
    filled, planned = plan_for(config_of(memory=OFFLOADED), parse_cluster("h100:1x8"))
    assert planned.memory_percent is not None
    cpu: Any = SimpleNamespace(platform="cpu")
    assert with_host_buffers(filled, replace(planned, memory_percent=None), cpu, lambda: 1).memory_percent is None

"""Processes of a job whose hosts have other code: each program is compared before it is first called."""

import importlib
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from jaxpar.checkpoint import same_program
from jaxpar.config.schema.training import RampPart
from jaxpar.generation.placed_model import PlacedModel
from jaxpar.generation.programs import SCORED
from jaxpar.generation.scorer import Scorer
from jaxpar.runtime.batch import BatchLayout
from jaxpar.training.run.batch_sizes import smaller_steps
from tests.sentences import refused
from tests.small_run import SmallRun, small


def test_the_last_value_of_a_flag_of_xla_is_compared():
    assert same_program.compared_flags("--a=1 --a=2") == same_program.compared_flags("--a=2") == "--a=2"
    assert same_program.compared_flags("--a=2 --a=1") == "--a=1"
    assert same_program.compared_flags("--b=1 --a --xla_dump_to=/x --xla_gpu_cuda_data_dir=/opt/cuda") == "--a --b=1"


KERNEL = """
from pallas_kernels.pallas import pl, triton

def double(x):
    def kernel(x, y):
        y[...] = 2 * x[...]

    return pl.pallas_call(kernel, out_shape=x, compiler_params=triton.CompilerParams())(x)
"""


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")
def test_a_program_with_a_kernel_is_the_same_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    device = AbstractDevice(device_kind="NVIDIA H100 80GB HBM3", num_cores=132, platform="gpu")

    def program(folder: Path) -> str:
        folder.mkdir()
        (folder / "doubling.py").write_text(KERNEL)
        monkeypatch.setattr(sys, "path", [str(folder), *path])
        sys.modules.pop("doubling", None)
        double = importlib.import_module("doubling").double
        same_program.name_sources_alike()
        with use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
            return jax.jit(double).trace(jnp.ones(8)).lower(lowering_platforms=("cuda",)).as_text()

    path, names = sys.path, jax.config.values[same_program._SOURCES]
    try:
        here, there = program(tmp_path / "here"), program(tmp_path / "elsewhere")
    finally:
        jax.config.update(same_program._SOURCES, names)
        del sys.modules["doubling"]
    assert "doubling.py" in here and here == there


def test_a_program_is_compared_with_that_of_process_0_once_and_before_its_call(monkeypatch: pytest.MonkeyPatch):
    said: list[dict[str, str]] = []
    ran: list[float] = []
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(same_program, "run_on_process_0", lambda work: said.append(work()) or said[0])
    program = lambda factor: jax.jit(lambda x: jax.debug.callback(ran.append, x) or factor * x)
    doubled, other = (same_program.compared(program(factor), "scores") for factor in (2, 3))
    assert [float(doubled(x)) for x in (1.0, 2.0)] == [2.0, 4.0] and len(said) == 1
    jax.effects_barrier()
    for _ in range(2):  # also after a refusal
        with refused("another program of scores than process 0", "program: ", "JAX_DUMP_IR_TO"):
            other(1.0)
    with refused("another program of scores than process 0"):
        doubled(jnp.ones(3))
    jax.effects_barrier()
    assert len(ran) == 2


@pytest.mark.long
@pytest.mark.parametrize("what", ["scores", "a step"])
def test_programs_of_scores_and_of_smaller_batches_are_compared(what: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(same_program, "run_on_process_0", lambda work: work() | {"program": "another"})
    run = SmallRun(small(parallel={"fsdp": 2, "zero": 3}, data={"batch_ramp": (RampPart(4, steps=2),)}))
    config, layout, mesh = run.config, run.step.layout, run.step.mesh
    weights, batch = layout.state_shapes.master, BatchLayout(SCORED, (2, 32)).abstract(mesh)
    [smaller] = smaller_steps(config, layout.plan, mesh, 0).values()
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with refused(f"another program of {what} than process 0"):
        if what == "scores":
            Scorer(PlacedModel(config, mesh, weights))._program(2, 32, False, 0)(weights, batch)
        else:
            smaller.compiled  # noqa: B018 (it is compiled when it is first read)

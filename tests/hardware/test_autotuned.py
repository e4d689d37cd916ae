"""Tiles of Triton's matmuls in a file: which flags they need, what XLA takes of them without a GPU, and refusals."""

import tempfile
from pathlib import Path

import pytest

from jaxpar.compiler.compile import compile_step
from jaxpar.hardware.autotuned import DUMP, FORMAT, LOAD, TRITON_GEMM, check_file, file_of
from jaxpar.hardware.catalogue import gpu_named
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.hardware.virtual_devices import COLLECTIVE_TIMEOUTS
from jaxpar.hardware.xla_flags import check_flags, merged, run_flags, xla_flags
from tests.compiler.inspected import wide
from tests.gpu_compile import h100s, in_child
from tests.sentences import refused

H100 = "CUDA: 9.0, Cores: 132, GPU clock: 1.98 GHz, Memory bandwidth: 3352 GB/s, L2 cache: 50 MB, DNN version: {}"
PRODUCT = r"""{\n  tmp_0 = bf16[4096,1024]{1,0} parameter(0)\n  tmp_1 = bf16[1024,2048]{1,0} parameter(1)\n\
  tmp_2 = bf16[4096,2048]{1,0} dot(bf16[4096,1024]{1,0} tmp_0, bf16[1024,2048]{1,0} tmp_1), lhs_contracting_dims={1}, \
rhs_contracting_dims={0}\n  tmp_3 = bf16[] constant(1)\n  tmp_4 = bf16[4096,2048]{1,0} broadcast(bf16[] tmp_3), \
dimensions={}\n  ROOT tmp_5 = bf16[4096,2048]{1,0} add(bf16[4096,2048]{1,0} tmp_2, bf16[4096,2048]{1,0} tmp_4)\n}"""
"""What XLA calls `x @ w + 1`."""


def results(hlo: str, device: str) -> str:
    """A file with tiles of 128 x 256 for one fusion."""
    tiles = "block_m: 128 block_n: 256 block_k: 64 num_stages: 3 num_warps: 8 num_ctas: 1 group_size: 1"
    hlo = hlo.replace("\\\n", "")
    return (
        f'version: 3\nresults {{\n  device: "{device}"\n  hlo: "{hlo}"\n'
        f"  result {{ run_time {{ nanos: 1 }} triton {{ {tiles} }} }}\n}}\n"
    )


def sum_and_product(file: str) -> str:
    """The optimized program of `x @ w + 1` for an H100, with the tiles of a file; child only."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import SingleDeviceSharding

    from jaxpar.compiler.wheels import cuda_release, options_without_machine_code, toolkit

    place = SingleDeviceSharding(h100s("1x1x1")[0])
    x, w = (jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=place) for shape in ((4096, 1024), (1024, 2048)))
    lowered = jax.jit(lambda x, w: x @ w + 1).trace(x, w).lower(lowering_platforms=("cuda",))
    with tempfile.TemporaryDirectory() as folder:
        options = options_without_machine_code(toolkit(cuda_release()), Path(folder) / "toolkit")
        own = {TRITON_GEMM: True, FORMAT: False} | ({LOAD: file} if file else {})
        return lowered.compile(compiler_options=options | own).as_text()


@pytest.mark.long
def test_without_a_gpu_xla_takes_the_tiles_of_a_file(tmp_path: Path):
    """It takes the smallest there are where the file lacks a fusion, or its line for the GPU is another's."""
    tiles = {}
    for name, device in {"its own": H100.format("0.0.0"), "another cuDNN": H100.format("9.1.0"), "": ""}.items():
        file = tmp_path / f"{name}.txt"
        file.write_text(results(PRODUCT, device))
        program = in_child("tests.hardware.test_autotuned:sum_and_product", str(file) if name else "")
        assert "__triton_nested_gemm_fusion" in program
        tiles[name] = '{"sizes":["128","256"]}' in program
    assert tiles == {"its own": True, "another cuDNN": False, "": False}


@pytest.mark.long
def test_a_step_that_the_file_does_not_know_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "tiles.txt"
    file.write_text(results(PRODUCT, H100.format("9.10.0")))
    monkeypatch.setenv("XLA_FLAGS", f"--{LOAD}={file}")
    config = wide(parallel={"fsdp": 8}, model={"layers": 1})
    with refused("XLA_FLAGS", str(file), "lacks tiles", "on GPUs alone", "a run of this configuration"):
        compile_step(config, parse_cluster("h100:1x8"), cache=None)


def test_a_file_that_is_read_or_written_brings_tritons_matmuls(monkeypatch: pytest.MonkeyPatch):
    kept = [flag for flag in xla_flags() if TRITON_GEMM not in flag]
    for name in (LOAD, DUMP):
        monkeypatch.setenv("XLA_FLAGS", f"--{name}=/tmp/a.txt")
        assert run_flags() == (*kept, f"--{TRITON_GEMM}=true", f"--{FORMAT}=false", f"--{name}=/tmp/a.txt")
        check_flags(" ".join(run_flags()))
        assert file_of(run_flags(), name) == Path("/tmp/a.txt")
        assert merged(COLLECTIVE_TIMEOUTS, f"--{name}=/tmp/a.txt").split()[:-1] == [*COLLECTIVE_TIMEOUTS], "on CPUs"
    monkeypatch.setenv("XLA_FLAGS", f"--{LOAD}=/tmp/a.txt --{TRITON_GEMM}=false")
    assert run_flags()[-1] == f"--{TRITON_GEMM}=false" and f"--{TRITON_GEMM}=true" not in run_flags()
    assert file_of(xla_flags()) is None


def test_files_that_are_not_of_this_gpu_are_refused(tmp_path: Path):
    file, h100 = tmp_path / "tiles.txt", gpu_named("h100")
    with refused(f"--{LOAD}={file}", "No such file", DUMP):
        check_file(file, h100)
    file.write_bytes(b"\xff\xfe")
    with refused(str(file), "not text"):
        check_file(file, h100)
    file.write_text("version: 3\n")
    with refused(str(file), "no results of a GPU"):
        check_file(file, h100)
    text = results(PRODUCT, H100.format("9.10.0"))
    file.write_text(text)
    assert check_file(file, h100) == check_file(file, None) == text
    with refused(str(file), "CUDA: 9.0, Cores: 132", "A100-SXM-80GB", "CUDA: 8.0, Cores: 108"):
        check_file(file, gpu_named("a100-80"))

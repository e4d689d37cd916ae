"""Programs as XLA's GPU compiler makes them for H100s, on a machine without a GPU.

The CUDA plugin is loaded in a child process, which talks on its screen where there is no driver. The device is
described by a text, so nothing of the machine at hand enters the program.
"""

import json
import os
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

H100 = """
gpu_device_info { threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: 84929347584
  shared_memory_per_block_optin: 232448 registers_per_core_limit: 65536 registers_per_block_limit: 65536
  cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES } }
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
runtime_version { major: 12 minor: 9 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""

QUICKLY = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}
"""Compiler options that halve the time of a compile: matmuls are calls of cuBLAS, and nothing is tuned."""


def h100s(topology: str) -> list[Any]:
    """Devices to compile for: `slices x hosts x GPUs per host`, such as "1x1x8"."""
    from jax.experimental import topologies

    return topologies.get_topology_desc("h100", "cuda", target_config=H100, topology=topology).devices


def compile_for_gpu(function: Any, *arguments: Any) -> Any:
    """A jitted `function` compiled for the devices that the shardings of `arguments` (shapes) name; child only.

    Without the machine code: for those who look at the program and its memory.
    """
    from jaxpar.compiler.wheels import cuda_release, options_without_machine_code, toolkit

    lowered = function.trace(*arguments).lower(lowering_platforms=("cuda",))
    with tempfile.TemporaryDirectory() as folder:
        options = options_without_machine_code(toolkit(cuda_release()), Path(folder) / "toolkit")
        return lowered.compile(compiler_options=QUICKLY | options)


def in_child(function: str, *arguments: Any, path: Path | None = None, timeout: float | None = None) -> Any:
    """The result of `function` ("package.module:name") called in a child process; both ways through JSON.

    Packages in the folder `path` hide those of the environment. After `timeout` seconds the child is ended.
    """
    environment = os.environ | {
        "LLVM_DISABLE_SYMBOLIZATION": "1",  # of tracebacks that nobody reads: most of the time of a compile
        "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1", "TF_CPP_MIN_LOG_LEVEL": "3",
        "JAX_ENABLE_COMPILATION_CACHE": "false",  # a program for a device that is not here cannot be read back
    }  # fmt: skip
    environment |= {} if path is None else {"PYTHONPATH": str(path)}
    command = [sys.executable, "-m", "tests.gpu_compile", function, json.dumps(arguments)]
    child = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=timeout)
    assert child.returncode == 0, f"{function} failed in the child process:\n{child.stderr[-4000:]}"
    return json.loads(child.stdout.splitlines()[-1])


if __name__ == "__main__":
    module, name = sys.argv[1].split(":")
    print(json.dumps(getattr(import_module(module), name)(*json.loads(sys.argv[2]))))

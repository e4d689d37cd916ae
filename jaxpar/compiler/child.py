"""The child process of `compile_step`: loads XLA's GPU compiler, which prints to the screen and may end the process.

Run as `python -m jaxpar.compiler.child FOLDER`; reads `request.json` there, writes `result.json`, and XLA's own texts.
"""

from __future__ import annotations

import json
import re
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

from jaxpar.compiler.compilation import MemoryNumbers
from jaxpar.compiler.wheels import cuda_release, options_without_machine_code, toolkit
from jaxpar.config.errors import UserError
from jaxpar.hardware.host import PINNED

DUMPS = {"buffer_assignment": "-buffer-assignment.txt", "live_ranges": "-live-range.txt"}
"""The XLA dumps that are kept, and how their names end."""

_MEMORY = {"peak": "peak_memory_in_bytes", "total_allocation": "total_allocation_bytes"}
"""XLA's names of numbers of memory that are not called `..._size_in_bytes`."""


def compile_request(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Compile the step that `request` asks for; the dumped texts are not part of the result.

    `folder` is for files that are needed on the way.
    """
    import jax
    from jax.experimental import topologies

    from jaxpar.config import config_from_dict
    from jaxpar.config.plan import Plan
    from jaxpar.config.reading.typed import record_from_plain
    from jaxpar.layout.step_layout import StepLayout
    from jaxpar.layout.step_options import step_options
    from jaxpar.mesh.build import build_mesh
    from jaxpar.training.step.train_step import TrainStep

    # JAX takes a slice for the GPUs that NVLink connects, so each host is a slice.
    topology = topologies.get_topology_desc(
        "cluster", "cuda", target_config=request["target"], topology=f"{request['hosts']}x1x{request['gpus_per_host']}"
    )
    config, plan = config_from_dict(request["config"]), record_from_plain(Plan, request["plan"], "plan")
    layout = StepLayout(config, plan)
    step = TrainStep(layout, build_mesh(plan.axes, topology.devices))
    start = time.perf_counter()
    with _described(step.mesh, topology.devices[0], request["target"]):
        inputs = step.residency.abstract_input(), layout.abstract_batch(step.mesh), layout.abstract_arguments(step.mesh)
        lowered = step.train.trace(*inputs).lower(lowering_platforms=("cuda",))
    if plan.optimizer_offload == "host" or layout.outer_on_host:
        offloaded = [leaf.memory_kind == PINNED for leaf in jax.tree.leaves(layout.state_shardings())]
        _put_on_host(lowered, {index for index, there in enumerate(offloaded) if there})
    options = step_options(plan, step.mesh) | options_without_machine_code(toolkit(cuda_release()), folder / "toolkit")
    compiled = lowered.compile(compiler_options=options)
    seconds = time.perf_counter() - start
    memory = compiled.memory_analysis()
    if memory is None:
        raise RuntimeError("XLA gave no account of memory")
    (state, batch, arguments), _ = compiled.input_shardings
    used = {"": state, "batch": batch, "arguments": arguments}  # None where the program does not use an argument
    inputs = [
        "/".join(filter(None, (prefix, jax.tree_util.keystr(path, simple=True, separator="/"))))
        for prefix, tree in used.items()
        for path, _ in jax.tree_util.tree_leaves_with_path(tree)
    ]
    return {
        "inputs": inputs,
        "program": compiled.as_text(),
        "memory": {
            name: int(getattr(memory, _MEMORY.get(name, f"{name}_size_in_bytes")))
            for name in (field.name for field in fields(MemoryNumbers))
        },
        "compile_seconds": seconds,
    }


def _described(mesh: Any, device: Any, target: str) -> Any:
    """A context in which kernels are lowered for GPUs like `device`, though the process has none."""
    from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

    match = re.search(r"core_count: *(\d+)", target)
    cores = int(match.group(1)) if match else None
    like = AbstractDevice(device_kind=device.device_kind, num_cores=cores, platform="gpu")
    return use_abstract_mesh(AbstractMesh(mesh.axis_sizes, mesh.axis_names, mesh.axis_types, abstract_device=like))


def _put_on_host(lowered: Any, arguments: set[int]) -> None:
    """Mark some arguments of a program, by number, as being in pinned host memory.

    Their shardings name that memory, but JAX drops it for devices that are not present, since they list no memories.
    """
    from jaxlib.mlir import ir

    module = lowered.compiler_ir()
    with module.context:
        (function,) = [op for op in module.body.operations if str(op.attributes["sym_name"]) == '"main"']
        pinned = {"mhlo.memory_kind": ir.StringAttr.get(PINNED)}
        function.arg_attrs = ir.ArrayAttr.get(
            [
                ir.DictAttr.get(
                    {item.name: item.attr for item in ir.DictAttr(old)} | (pinned if index in arguments else {})
                )
                for index, old in enumerate(function.arg_attrs)
            ]
        )


def main(folder: Path) -> None:
    """Answer the request in `folder`."""
    request = json.loads((folder / "request.json").read_text())
    try:
        result = compile_request(request, folder)
    except UserError as error:
        result = {"error": str(error)}
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

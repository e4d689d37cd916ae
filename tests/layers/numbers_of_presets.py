"""The numbers of every preset's layers: counts, bytes, costs and times, under a few layouts, devices and mechanisms.

`python -m tests.layers.numbers_of_presets FILE` writes them. `data/numbers.json` was written when each of them was
still described by hand, in eight places.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.validation.mechanisms import GENERATIONS
from jaxpar.config.plan import AxisSizes
from jaxpar.config.presets import PRESETS as MODELS
from jaxpar.config.schema import Config, DataConfig, OptimizerConfig, PrecisionConfig
from jaxpar.cost.hardware_model import hardware_of
from jaxpar.cost.head import head_time
from jaxpar.cost.layer import layer_time
from jaxpar.cost.layer_case import layer_case
from jaxpar.cost.messages import network_of
from jaxpar.cost.operations import device_of
from jaxpar.cost.recomputation import layer_costs, operation_flops
from jaxpar.cost.work import Work
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layers.counting import layer_matmul_parameters, matmul_parameters, parameter_count
from jaxpar.memory.closed_forms import CLOSED_FORMS
from jaxpar.memory.layer_shape import activation_bytes
from jaxpar.memory.pipeline_offload import rank_parameters, working_bytes
from jaxpar.memory.remat import PRESETS as REMATS
from jaxpar.memory.remat import remat_map
from jaxpar.model.flops import flops_per_step
from jaxpar.planner.layout import Layout
from jaxpar.planner.step_time.kept import kept_bytes
from jaxpar.planner.step_time.model import step_time
from jaxpar.planner.step_time.update import matrix_seconds
from tests.memory.shapes import layer_shape

MODEL_NAMES = (
    "gpt2-124m", "llama3-1b", "llama3-8b", "llama3-70b", "qwen3-0.6b", "qwen3-8b", "mistral-7b", "gpt3-175b",
)  # fmt: skip
"""The presets that there were then."""

MUON = OptimizerConfig(name="muon")

LAYOUTS = (
    (AxisSizes(), 1, 1024, "bfloat16"),
    (AxisSizes(tensor=2, context=4), 3, 8192, "float32"),
    (AxisSizes(tensor=8), 2, 8192, "bfloat16"),
    (AxisSizes(tensor=2), 1, 4096, "float32"),
    (AxisSizes(tensor=8, context=4), 5, 2048, "bfloat16"),
    (AxisSizes(context=4), 1, 32768, "float16"),
)
"""(axes, rows, sequence length, compute dtype)."""

TIMES = (
    ("h100:4x8", "jaxpar", 1, 4096, 1, 1, "allgather", False, "bfloat16"),
    ("h100:4x8", "jaxpar", 2, 8192, 2, 4, "allgather", True, "bfloat16"),
    ("b200:4x8", "megatron-core", 1, 8192, 4, 2, "usp", True, "float8"),
    ("a100-80:2x8", "megatron-2021", 3, 2048, 4, 1, "allgather", False, "bfloat16"),
    ("h100:4x8", "torchtitan", 1, 16384, 1, 4, "ring", False, "float8"),
    ("h800:4x8", "megatron-2024", 2, 8192, 2, 2, "ulysses", True, "bfloat16"),
    ("v100-32:2x8", "llm-foundry", 1, 2048, 1, 1, "allgather", False, "float32"),
)  # fmt: skip
"""(cluster, mechanisms, rows, sequence, tensor, context, strategy, sequence parallelism, precision)."""

STEPS = (
    ("h100:4x8", "jaxpar", Layout(fsdp=32, zero=3)),
    ("h100:4x8", "megatron-core", Layout(pipe=4, fsdp=4, tensor=2, zero=1, schedule="1f1b", remat="full")),
    ("h100:4x8", "jaxpar", Layout(fsdp=8, context=2, tensor=2, zero=2, context_strategy="ring", remat="gemm_last",
                                  offload_fraction=0.5)),
)  # fmt: skip

KEPT_BY_NAME = ((1, (("query", "save"), ("mlp_gate", "save"), ("mlp_up", "recompute"))), (3, (("key", "offload"),)))


def numbers() -> dict[str, Any]:
    """Everything, by preset."""
    return {name: numbers_of(name) for name in MODEL_NAMES}


def numbers_of(name: str) -> dict[str, Any]:
    """Those of one preset, as JSON has them."""
    model = MODELS[name]
    vocab = model.vocab or 0
    tokens = 8 * 4096
    found: dict[str, Any] = {
        "parameters": [parameter_count(model, padded=False), parameter_count(model, padded=True)],
        "matmul parameters": [layer_matmul_parameters(model), matmul_parameters(model, vocab)],
        "flops": [flops_per_step(model, tokens, {model.window: pairs}, vocab) for pairs in (tokens, 67_125_248)],
        "memory": [_memory(name, *layout) for layout in LAYOUTS if model.heads % layout[0].tensor == 0],
        "times": [_times(name, *case) for case in TIMES],
        "steps": [_step(name, *step) for step in STEPS],
    }
    sizes = activation_bytes(layer_shape(Config(model=model), AxisSizes(), 1))
    found["remat"] = {
        preset: [name for name, own in remat_map(preset, sizes).items() if own == "save"] for preset in REMATS
    }
    return found


def _memory(name: str, axes: AxisSizes, rows: int, sequence: int, dtype: Any) -> dict[str, Any]:
    config = Config(
        model=MODELS[name], data=DataConfig(sequence_length=sequence), precision=PrecisionConfig(compute=dtype)
    )
    shape = layer_shape(config, axes, rows)
    costs = layer_costs(shape, parse_cluster("h100:4x8"))
    return {
        "bytes": activation_bytes(shape),
        "operations": operation_flops(shape),
        "costs": [
            [[list(r.outputs), r.seconds] for r in costs.recomputations],
            [costs.forward_seconds, costs.backward_seconds, costs.forward_flops],
        ],
        "forms": {preset: form(shape) for preset, form in CLOSED_FORMS.items()},
        "rank": [rank_parameters(shape, 3, 1024), working_bytes(shape), shape.keys_per_query],
    }


def _times(
    name: str, cluster: str, generation: str, rows: int, sequence: int, tensor: int, context: int, strategy: str,
    parallel: bool, precision: str,
) -> dict[str, Any]:  # fmt: skip
    there = parse_cluster(cluster)
    hardware = hardware_of(there.gpu)
    device, network, does = device_of(there.gpu, hardware), network_of(there, hardware), GENERATIONS[generation]
    case = layer_case(MODELS[name], sequence, rows, tensor, context, strategy, parallel, precision)
    time = layer_time(case, device, network, does)
    kept = [kept_bytes(case, remat) for remat in (*REMATS, KEPT_BY_NAME)]
    return {
        "operations": {name: _own(work) for name, work in time.operations.items()},
        "backward": [_own(time.backward), time.weight],
        "head": [_own(work) for work in head_time(case, 50304, device, network, does)],
        "case": [case.parameters, case.shape.keys_per_query, *kept, matrix_seconds(case, device, MUON, 4)],
    }


def _own(work: Work) -> list[float]:
    """Without exchanges, which models without experts do not have."""
    return [value for name, value in work._asdict().items() if name not in ("exchange", "beside") or value]


def _step(name: str, cluster: str, generation: str, layout: Layout) -> list[float]:
    step = step_time(MODELS[name], 8192, 64, layout, parse_cluster(cluster), GENERATIONS[generation])
    return [step.seconds, step.mfu, *(value for name, value in step.breakdown.items() if name != "exchange" or value)]


if __name__ == "__main__":
    text = json.dumps(numbers(), separators=(",", ":"))
    Path(sys.argv[1]).write_text(text.replace('},"', '},\n"') + "\n")

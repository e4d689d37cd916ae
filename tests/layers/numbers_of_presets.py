"""The numbers of every preset's layers: counts and bytes, under a few layouts.

`python -m tests.layers.numbers_of_presets FILE` writes them. `data/numbers.json` was written when each of them was
still described by hand, in eight places.
"""

import json
import sys
from pathlib import Path
from typing import Any

from jaxpar.config.plan import AxisSizes
from jaxpar.config.presets import PRESETS as MODELS
from jaxpar.config.schema import Config, DataConfig, PrecisionConfig
from jaxpar.layers.counting import layer_matmul_parameters, matmul_parameters, parameter_count
from jaxpar.memory.closed_forms import CLOSED_FORMS
from jaxpar.memory.layer_shape import activation_bytes
from jaxpar.memory.remat import PRESETS as REMATS
from jaxpar.memory.remat import remat_map
from jaxpar.model.flops import flops_per_step
from tests.memory.published_offload import rank_parameters, working_bytes
from tests.memory.shapes import layer_shape

MODEL_NAMES = (
    "gpt2-124m", "llama3-1b", "llama3-8b", "llama3-70b", "qwen3-0.6b", "qwen3-8b", "mistral-7b", "gpt3-175b",
)  # fmt: skip
"""The presets that there were then."""

LAYOUTS = (
    (AxisSizes(), 1, 1024, "bfloat16"),
    (AxisSizes(tensor=2, context=4), 3, 8192, "float32"),
    (AxisSizes(tensor=8), 2, 8192, "bfloat16"),
    (AxisSizes(tensor=2), 1, 4096, "float32"),
    (AxisSizes(tensor=8, context=4), 5, 2048, "bfloat16"),
    (AxisSizes(context=4), 1, 32768, "float16"),
)
"""(axes, rows, sequence length, compute dtype)."""


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
    return {
        "bytes": activation_bytes(shape),
        "forms": {preset: form(shape) for preset, form in CLOSED_FORMS.items()},
        "rank": [rank_parameters(shape, 3, 1024), working_bytes(shape), shape.keys_per_query],
    }


if __name__ == "__main__":
    text = json.dumps(numbers(), separators=(",", ":"))
    Path(sys.argv[1]).write_text(text.replace('},"', '},\n"') + "\n")

"""Whole training steps on the device: speed, state on the device or the host, and whether the numbers are equal."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.gpu.journal import Journal
from benchmarks.gpu.programs import sentence
from benchmarks.jax_step import measure
from jaxpar.config import Config, UserError, load_config
from jaxpar.distributed.devices import host_gpu
from jaxpar.hardware.autotuned import DUMP
from jaxpar.hardware.host import host_memory
from jaxpar.layers.counting import parameter_count
from jaxpar.observe.memory import limit_bytes
from pallas_kernels.verified import user_file

ONE = ("parallel.fsdp=1", "parallel.zero=0", "parallel.microbatches=1", "data.source=synthetic", "data.packed=false")
CONFIGS = Path(__file__).parents[2] / "configs"
LLAMA_1B, LLAMA_8B, GPT2 = (str(CONFIGS / name) for name in ("llama3_1b.yaml", "llama3_8b.yaml", "gpt2_124m.yaml"))
LLAMA_1B_STEP = (*ONE, "data.batch_size=8", "parallel.microbatches=2", "memory.remat=gemm_last")
GPT_1_3B_STEP = (
    *ONE, "model.layers=24", "model.embed=2048", "model.heads=16", "model.kv_heads=16", "model.head_dim=128",
    "model.mlp=8192", "model.max_positions=2048",
    "data.sequence_length=2048", "data.batch_size=32", "parallel.microbatches=2", "memory.remat=auto",
)  # fmt: skip
"""Overrides of `GPT2` that make it GPT-3 XL's shape, with rows of 2,048 tokens."""
TINY = (
    "model.preset=null", "model.layers=1", "model.embed=64", "model.heads=4", "model.kv_heads=2", "model.head_dim=16",
    "model.mlp=96", "model.vocab=256", "data.sequence_length=64", "data.batch_size=2",
)  # fmt: skip

STATE_BYTES = {"none": 18, "host": 6}
"""Bytes of a parameter on the device: master weight and two moments (12, on the host under `host`), the weight in
compute dtype (2) and its gradient (4)."""
HOST_BYTES = 12
RECIPES = {
    "bfloat16": (),
    "fp8_current": ("precision.matmul=fp8_current",),
    "fp8_delayed": ("precision.matmul=fp8_delayed",),
    "fp8_block": ("precision.matmul=fp8_block",),
    "fp8_block, mosaic": ("precision.matmul=fp8_block", "precision.matmul_options.backend=mosaic"),
}
"""Name of a row to what multiplies: bfloat16, and what `precision.matmul` takes on a Hopper GPU. `fp8_block` takes the
kernel by itself only where that was verified, and multiplies in bfloat16 elsewhere."""
EVERY_MATRIX = "precision.matmul_options={exclude: [head, router], first_layers: 0, last_layers: 0}"
"""As torchao quantizes (`benchmarks.torch_step.to_float8`)."""
GPT_1_3B = "1.3b"
"""Before the names of its rows."""
SHARE = 0.8
"""Share of the device's memory for these; activations, temporaries and fragmentation take the remainder."""
HOST_SHARE = 0.5
"""Share of the host's memory: pinning more takes longer than a part has."""


def step(journal: Journal) -> None:
    """Tokens per second and MFU of llama3-1b, 4096 tokens a row."""
    journal.add("step", name="llama3-1b", **_measured(LLAMA_1B, LLAMA_1B_STEP, journal, steps=8))


def tiles_file() -> Path:
    """Where the tiles of `triton_step` are written: named by the GPU and by jaxlib, in the user's cache folder."""
    gpu = host_gpu()
    name = f"tiles-{'gpu' if gpu is None else gpu.short}-jaxlib-{version('jaxlib')}.txt"
    return user_file().with_name(name)


def triton_flags() -> tuple[str, ...]:
    """Of the process of `triton_step`; `jaxpar.hardware.xla_flags.merged` then takes Triton's matmuls."""
    tiles_file().parent.mkdir(parents=True, exist_ok=True)
    return (f"--{DUMP}={tiles_file()}",)


def triton_step(journal: Journal) -> None:
    """The same step as `step` with Triton's matmuls, whose tiles XLA times on the GPU and writes to a file."""
    if jax.devices()[0].platform != "gpu":
        journal.skip("llama3-1b with Triton's matmuls", "XLA times tiles on GPUs alone")
        return
    found = _measured(LLAMA_1B, LLAMA_1B_STEP, journal, steps=8)
    journal.add("triton", name="llama3-1b", tiles=str(tiles_file()), **found)


def recipes(journal: Journal) -> None:
    """The same step with matmuls in bfloat16 and in each FP8 recipe, all matrices of the layers quantized."""
    _in_recipes(journal, LLAMA_1B, LLAMA_1B_STEP, "")


def recipes_of_1_3b(journal: Journal) -> None:
    """A step of 1.3B parameters with matmuls in bfloat16 and in each FP8 recipe, as the other `recipes`."""
    _in_recipes(journal, GPT2, GPT_1_3B_STEP, f"{GPT_1_3B}, ")


def _in_recipes(journal: Journal, file: str, options: tuple[str, ...], before: str) -> None:
    for name, recipe in [*RECIPES.items()][: 2 if journal.dry else None]:
        if not journal.has_time(before + name, 25):
            continue
        every = (EVERY_MATRIX,) if recipe else ()
        journal.add("recipe", name=before + name, **_measured(file, (*options, *recipe, *every), journal, steps=6))


def tier(journal: Journal, offload: str) -> None:
    """The deepest model of Llama-3-8B's widths that there is room for, with its state on the device or on the host."""
    most = limit_bytes() * SHARE / STATE_BYTES[offload]
    if offload == "host":
        most = min(most, host_memory() * HOST_SHARE / HOST_BYTES)
    layers = 1 if journal.dry else _layers(most)
    if not layers:
        journal.skip(f"llama3-8b's widths, state on the {offload}", "not even one layer fits")
        return
    options = (
        *ONE, f"model.layers={layers}", f"memory.optimizer_offload={offload}", "memory.remat=full",
        "data.batch_size=1", "data.sequence_length=2048",
    )  # fmt: skip
    found = _measured(LLAMA_8B, options, journal, warmup=1, steps=2)
    journal.add("tier", name=f"{layers} layers", tier=offload, **found)


def _layers(parameters: float) -> int:
    of = lambda layers: parameter_count(load_config(LLAMA_8B, [f"model.layers={layers}"]).model, padded=False)
    first, second = of(1), of(2)
    return max(0, int((parameters - first) / (second - first)) + 1)


def _measured(file: str, options: tuple[str, ...], journal: Journal, **times: int) -> dict[str, Any]:
    times = {"warmup": 1, "steps": 1} if journal.dry else {"warmup": 3} | times
    try:
        config = _config(file, options, journal.dry)
        found = measure(*config, **times)
    except UserError as error:
        return {"refused": str(error)}
    except Exception as error:  # for example out of memory: a row of its own
        return {"failed": sentence(error)}
    return {"parameters": parameter_count(load_config(*config).model, padded=False), **found}


def _config(file: str, options: tuple[str, ...], dry: bool) -> tuple[str, tuple[str, ...]]:
    """File and overrides; a dry run has as few programs as possible, since it only compiles them."""
    if not dry:
        return file, options
    kept = (option for option in options if option.startswith(("memory.optimizer_offload", "precision.")))
    return LLAMA_1B, (*ONE, *TINY, *kept)


def same_bits(journal: Journal) -> None:
    """Three steps with state on the device and on the host give the same losses and weights, bit for bit."""
    for rule in ("adamw",) if journal.dry else ("adamw", "muon"):
        if not journal.has_time(f"bits of {rule}", 15):
            continue
        try:
            device, host = (_steps(_bits_config(rule, tier, journal.dry)) for tier in ("none", "host"))
        except Exception as error:  # a row reports what went wrong
            journal.add("bits", name=rule, failed=sentence(error))
            continue
        equal = all(np.array_equal(a, b) for a, b in zip(device, host, strict=True))
        journal.add("bits", name=rule, passed=equal, compared=len(device))


def _bits_config(rule: str, tier: str, dry: bool) -> Config:
    options = (
        *ONE, "model.layers=2", "data.sequence_length=512", "data.batch_size=2", f"optimizer.name={rule}",
        f"memory.optimizer_offload={tier}", "attention.backend=xla",
    )  # fmt: skip  # not every attention gives the same bits twice, and this is not about attention
    return load_config(*_config(LLAMA_1B, options, dry))


def _steps(config: Config) -> list[np.ndarray]:
    """Losses, then all master weights and moments, after three steps."""
    from jaxpar.data import batch_rows
    from jaxpar.training.run.run import Run

    trainer = Run(config, devices=jax.devices()[:1])
    # On the device all of this state would stay there, and nothing would be compared.
    trainer = Run(config, devices=jax.devices()[:1], plan=replace(trainer.plan, resident_weights=()))
    state, losses = trainer.state, []
    for index in range(3):
        rows = batch_rows(trainer.data.train, index, config.data.batch_size, trainer.placer.rows)
        state, metrics = trainer.compiled(state, trainer.placer(rows), trainer.functions.arguments)
        losses.append(np.asarray(metrics.loss))
    return [*losses, *map(np.asarray, jax.tree.leaves(jax.device_get((state.master, state.optimizer))))]

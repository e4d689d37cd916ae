"""The numbers of a logged step under their names in TensorBoard and Weights & Biases."""

from __future__ import annotations

from dataclasses import asdict

from jaxpar.observe.events import StepRecord

_TAGS = {
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "learning_rate": "train/learning_rate",
    "matrix_learning_rate": "train/matrix_learning_rate",
    "loss_scale": "train/loss_scale",
    "skipped_steps": "train/skipped_steps",
    "empty_steps": "train/empty_steps",
    "tokens_per_second": "speed/tokens_per_second",
    "tokens_per_second_per_device": "speed/tokens_per_second_per_device",
    "step_time_s": "speed/step_time_s",
    "mfu": "speed/mfu",
    "data_wait": "speed/data_wait",
}


def step_scalars(record: StepRecord) -> dict[str, float]:
    """Tag to value; unknown values are left out."""
    values = asdict(record)
    scalars = {tag: values[field] for field, tag in _TAGS.items() if values[field] is not None}
    if record.memory_bytes is not None:
        scalars[f"memory/{record.memory_kind}_bytes"] = record.memory_bytes
    if record.memory_peak_bytes is not None:
        scalars[f"memory/{record.memory_kind}_peak_bytes"] = record.memory_peak_bytes
    for block, reported in (record.blocks or {}).items():
        scalars |= {f"{block}/{name}": value for name, value in reported.items()}
    for name, value in (record.metrics or {}).items():
        scalars[f"eval/{name.removeprefix('eval_')}" if name.startswith("eval_") else f"train/{name}"] = value
    return scalars | {f"epochs/{source}": epochs for source, epochs in (record.epochs or {}).items()}


def evaluation_scalars(loss: float, baseline: float | None) -> dict[str, float]:
    """Tag to value of an evaluation on validation data, in nats per token."""
    return {"eval/loss": loss} | ({} if baseline is None else {"eval/baseline_loss": baseline})

"""TensorBoard events in `<run folder>/tensorboard`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpar.observe.events import Listener, RunInfo, StepRecord

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter

TENSORBOARD_FOLDER = "tensorboard"

_TAGS = {
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "learning_rate": "train/learning_rate",
    "loss_scale": "train/loss_scale",
    "skipped_steps": "train/skipped_steps",
    "tokens_per_second": "speed/tokens_per_second",
    "tokens_per_second_per_device": "speed/tokens_per_second_per_device",
    "step_time_s": "speed/step_time_s",
    "mfu": "speed/mfu",
}


class TensorBoard(Listener):
    """Writes scalars per logged step, held-out losses, samples and the configuration.

    After a restore TensorBoard hides what an earlier process wrote for `first_step` and later (its purge step).
    """

    def __init__(self) -> None:
        self._writer: SummaryWriter | None = None
        self._step = 0

    def start(self, info: RunInfo) -> None:
        from tensorboardX import SummaryWriter  # a dependency of this file alone

        self._writer = SummaryWriter(
            str(Path(info.folder) / TENSORBOARD_FOLDER),
            purge_step=info.first_step if info.first_step > 1 else None,
            flush_secs=10,
        )
        self._step = info.first_step - 1
        config = json.dumps(dict(info.config), indent=2, default=str)
        self._writer.add_text("config", f"```json\n{config}\n```", self._step)

    def step(self, record: StepRecord) -> None:
        assert self._writer is not None, "start comes before step"
        self._step = record.step
        values = asdict(record)
        for field, tag in _TAGS.items():
            if values[field] is not None:
                self._writer.add_scalar(tag, values[field], record.step)
        if record.memory_bytes is not None:
            self._writer.add_scalar(f"memory/{record.memory_kind}_bytes", record.memory_bytes, record.step)

    def evaluation(self, step: int, loss: float, baseline: float | None) -> None:
        assert self._writer is not None, "start comes before evaluation"
        self._writer.add_scalar("eval/loss", loss, step)
        if baseline is not None:
            self._writer.add_scalar("eval/baseline_loss", baseline, step)

    def sample(self, prompt: str, continuation: str) -> None:
        assert self._writer is not None, "start comes before sample"
        self._writer.add_text("sample", f"```\n{prompt}\n```\n\n```\n{continuation}\n```", self._step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

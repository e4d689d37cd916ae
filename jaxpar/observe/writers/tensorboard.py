"""TensorBoard events in `<run folder>/tensorboard`.

tensorboardX makes the events. Its writer is not used: it hands them to a thread, which dies on a full disk, and the
training that waits for the thread hangs.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from pathlib import Path

from jaxpar.observe.events import Listener, RunInfo, StepRecord
from jaxpar.observe.files import GrowingFile
from jaxpar.observe.writers.scalars import evaluation_scalars, step_scalars

TENSORBOARD_FOLDER = "tensorboard"


class TensorBoard(Listener):
    """Writes scalars per logged step, validation losses, samples and the configuration.

    After a restore TensorBoard hides what an earlier process wrote for `first_step` and later (a purge step).
    """

    def __init__(self) -> None:
        self._file: GrowingFile | None = None
        self._step = 0

    def start(self, info: RunInfo) -> None:
        folder = Path(info.folder) / TENSORBOARD_FOLDER
        folder.mkdir(exist_ok=True)
        # TensorBoard reads the files of a folder in the order of their names.
        name = f"events.out.tfevents.{int(time.time()):010}.{socket.gethostname()}.{os.getpid()}"
        self._file = GrowingFile(folder / name)
        self._write(0, file_version="brain.Event:2")
        self._step = info.first_step - 1
        if info.first_step > 1:
            self._purge(info.first_step)
        self._text("config", json.dumps(dict(info.config), indent=2, default=str))

    def step(self, record: StepRecord) -> None:
        self._step = record.step
        self._scalars(record.step, step_scalars(record))

    def evaluation(self, step: int, loss: float, baseline: float | None) -> None:
        self._scalars(step, evaluation_scalars(loss, baseline))

    def rewound(self, step: int) -> None:
        self._step = step
        self._purge(step + 1)

    def sample(self, prompt: str, continuation: str) -> None:
        self._text("sample", prompt, continuation)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _purge(self, step: int) -> None:
        """TensorBoard hides what was written before for this step and later."""
        self._write(step, session_log={"status": 1})  # START

    def _scalars(self, step: int, scalars: dict[str, float]) -> None:
        self._write(step, summary={"value": [{"tag": tag, "simple_value": value} for tag, value in scalars.items()]})

    def _text(self, tag: str, *blocks: str) -> None:
        from tensorboardX.summary import text

        self._write(self._step, summary=text(tag, "\n\n".join(f"```\n{block}\n```" for block in blocks)))

    def _write(self, step: int, **event: object) -> None:
        from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]

        assert self._file is not None, "start comes first"
        self._file.append(_record(Event(wall_time=time.time(), step=step, **event).SerializeToString()))


def _record(content: bytes) -> bytes:
    """TensorFlow's TFRecord: the length, its checksum, the content, its checksum."""
    from tensorboardX.record_writer import masked_crc32c

    length = struct.pack("<Q", len(content))
    return b"".join(
        [length, struct.pack("<I", masked_crc32c(length)), content, struct.pack("<I", masked_crc32c(content))]
    )

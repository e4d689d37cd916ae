"""TensorBoard events, read back from the files."""

import struct
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]

from jaxpar.observe.writers.tensorboard import TensorBoard
from tests.observe.records import record, run_info


def events(folder: Path) -> list[Event]:
    """Events of every file in the order of writing: a record is a length, a checksum, the event, a checksum."""
    found = []
    for path in sorted((folder / "tensorboard").iterdir()):
        content = path.read_bytes()
        offset = 0
        while offset < len(content):
            (length,) = struct.unpack_from("<Q", content, offset)
            found.append(Event.FromString(content[offset + 12 : offset + 12 + length]))
            offset += length + 16
    return found


def scalars(folder: Path) -> dict[tuple[str, int], float]:
    return {
        (value.tag, event.step): value.simple_value
        for event in events(folder)
        for value in event.summary.value
        if value.WhichOneof("value") == "simple_value"
    }


def test_scalars_of_steps_and_evaluations_are_written(tmp_path: Path) -> None:
    writer = TensorBoard()
    writer.start(run_info(tmp_path))
    writer.evaluation(10, 2.5, 2.75)
    writer.step(record(10, loss=2.25, mfu=None, memory_bytes=1024, memory_kind="host"))
    writer.step(record(20, matrix_learning_rate=2e-2))
    writer.step(record(30, mfu=0.5))
    writer.close()
    written = scalars(tmp_path)
    assert written["speed/mfu", 30] == 0.5 and written["train/loss", 10] == 2.25
    assert written["train/learning_rate", 10] == pytest.approx(3e-4)
    assert ("train/matrix_learning_rate", 10) not in written
    assert written["train/matrix_learning_rate", 20] == pytest.approx(2e-2)
    assert written["eval/loss", 10] == 2.5 and written["eval/baseline_loss", 10] == 2.75
    assert written["memory/host_bytes", 10] == 1024
    assert not any(tag.startswith("speed/mfu") for tag, step in written if step != 30)


@pytest.mark.parametrize(("first_step", "rewound", "purged"), [(1, None, []), (21, None, [21]), (1, 20, [21])])
def test_steps_after_the_checkpoint_are_purged(tmp_path: Path, first_step: int, rewound: int | None, purged: list[int]):
    writer = TensorBoard()
    writer.start(run_info(tmp_path, first_step=first_step))
    if rewound is not None:
        writer.step(record(30))
        writer.rewound(rewound)
    writer.close()
    assert [event.step for event in events(tmp_path) if event.HasField("session_log")] == purged

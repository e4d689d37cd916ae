"""loss.png: when it is drawn and what it shows."""

import io
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from jaxpar.observe.writers.jsonl import JsonLines
from jaxpar.observe.writers.plot import Curves, LossPlot, draw
from tests.observe.records import record, run_info, summary


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def count(image: np.ndarray, color: tuple[int, int, int]) -> int:
    """Pixels of nearly this colour."""
    return int((np.abs(image - np.array(color)).max(axis=-1) < 12).sum())


def test_each_curve_is_there_only_when_it_has_points() -> None:
    blue, orange, grey = (0x4C, 0x78, 0xA8), (0xD9, 0x53, 0x2C), (0x55, 0x55, 0x55)
    train = [(step, 5.0 / step) for step in range(1, 50)]
    alone = pixels(draw(Curves("run", train=train)))
    whole = pixels(draw(Curves("run", train=train, validation=[(25, 2.0), (49, 1.0)], baseline=1.5)))
    assert alone.shape == (720, 1280, 3) and count(alone, blue) > 500 and count(alone, orange) < 20
    assert count(whole, blue) > 500 and count(whole, orange) > 500 and count(whole, grey) > count(alone, grey) + 500


@pytest.mark.parametrize("steps", [1, 3])
def test_a_short_run_has_whole_steps_on_its_axis(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    drawn: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **more: (drawn.append(self), save(self, *args, **more)))
    image = pixels(draw(Curves("run", train=[(step, 3.0 / step) for step in range(1, steps + 1)])))
    ticks = drawn[0].axes[0].get_xticks()
    assert len(ticks) > 1 and all(tick == round(tick) for tick in ticks)
    assert count(image[:600, 200:], (0x4C, 0x78, 0xA8)) > 30, "one step is a point"


def test_it_is_drawn_with_an_evaluation_and_at_the_end(tmp_path: Path) -> None:
    plot = LossPlot()
    plot.start(run_info(tmp_path))
    plot.step(record(1))
    assert not (tmp_path / "loss.png").exists()
    plot.evaluation(2, 2.5, 2.7)
    first = (tmp_path / "loss.png").read_bytes()
    plot.step(record(2, eval_loss=2.5))
    assert (tmp_path / "loss.png").read_bytes() == first, "a step takes no time for drawing"
    plot.step(record(3, loss=0.5))
    plot.end(summary())
    assert (tmp_path / "loss.png").read_bytes() != first


def test_after_a_restore_the_picture_is_that_of_an_unbroken_run(tmp_path: Path) -> None:
    def run(folder: Path, pieces: list[tuple[int, list[int]]]) -> bytes:
        folder.mkdir(parents=True)
        for first_step, steps in pieces:
            plot, metrics = LossPlot(), JsonLines()
            info = run_info(folder, first_step=first_step)
            plot.start(info)
            metrics.start(info)
            for step in steps:
                evaluated = step % 4 == 0
                loss = 3.0 - step / 10 + first_step / 50 * (step == 9)  # the step that is run twice differs
                if evaluated:
                    plot.evaluation(step, loss, 2.0)
                values = record(step, loss=loss, eval_loss=loss if evaluated else None)
                plot.step(values)
                metrics.step(values)
            metrics.close()
        plot.end(summary())
        return (folder / "loss.png").read_bytes()

    broken = run(tmp_path / "a" / "run", [(1, list(range(1, 10))), (9, list(range(9, 13)))])
    lost = [step for step in range(1, 13) if step != 9]
    assert pixels(broken).shape == (720, 1280, 3) and broken != run(tmp_path / "b" / "run", [(1, lost)])
    assert broken == run(tmp_path / "c" / "run", [(1, list(range(1, 9))), (9, list(range(9, 13)))])


def test_steps_after_the_checkpoint_that_a_run_went_back_to_are_not_drawn(tmp_path: Path) -> None:
    plot = LossPlot()
    plot.start(run_info(tmp_path))
    for step, loss in ((1, float("nan")), (2, 2.0), (3, float("inf")), (4, 1.0)):
        plot.step(record(step, loss=loss))
    assert plot.curves.train == [(2, 2.0), (4, 1.0)], "a loss that is not finite is left out"
    plot.evaluation(4, 2.5, None)
    plot.rewound(2)
    assert plot.curves.train == [(2, 2.0)] and plot.curves.validation == []

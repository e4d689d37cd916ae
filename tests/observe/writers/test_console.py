"""The lines that a person sees, with a terminal and without."""

import io
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from jaxpar.observe.writers.console import ConsoleView
from tests.observe.records import record, run_info, summary

NOW = datetime(2026, 11, 23, 9, 8, 7)


def view(terminal: bool = False, width: int = 120, encoding: str = "utf-8") -> tuple[ConsoleView, io.TextIOWrapper]:
    screen = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    return ConsoleView(Console(file=screen, force_terminal=terminal, width=width), now=lambda: NOW), screen


def text(screen: io.TextIOWrapper) -> str:
    screen.flush()
    buffer = screen.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode(screen.encoding)


def whole_run(shown: ConsoleView, folder: Path) -> None:
    shown.start(run_info(folder, baseline_loss=2.3))
    shown.step(record(10, loss=2.8765, mfu=0.4123, memory_bytes=12 * 2**30))
    shown.evaluation(20, 1.9, 2.3)
    shown.step(record(20, mfu=0.4123, memory_bytes=12 * 2**30, eval_loss=1.9, eta_s=0.0))
    shown.saved(20, str(folder / "checkpoints" / "20"))
    shown.message("checkpoint 10 is corrupt and was skipped")
    shown.sample("def main():", "\n    return 0")
    shown.end(summary())
    shown.close()


def test_every_decision_and_its_reason_is_shown_when_asked_for(tmp_path: Path) -> None:
    screen = io.StringIO()
    ConsoleView(Console(file=screen, width=120), verbose=True).start(run_info(tmp_path))
    lines = [line.split() for line in screen.getvalue().splitlines()]
    assert ["attention", "xla", "linear", "in", "memory"] in lines
    assert not any("--verbose" in line for line in lines)


def test_the_whole_run_is_reported(tmp_path: Path) -> None:
    shown, screen = view()
    whole_run(shown, tmp_path)
    printed = text(screen)
    assert set(re.findall(r"[^ -~]", printed)) == {"\n"}, "without a terminal there are only plain lines"
    assert "as written" not in printed, "reasons are for --verbose"
    for part in ("fsdp 2 x tensor 4", "--verbose", "2.8765", "1.250", "3.00e-04", "81.2k", "10.2k", "41.2%",
                 "12.0 GiB", "1:15", "09:08:07", " 50.0% ",
                 "0.4000 below the bigram baseline of 2.3000", "saved checkpoints/20",
                 "Baseline: a bigram model, with a validation loss of 2.3000",
                 "- checkpoint 10 is corrupt and was skipped", "| def main():", "|     return 0",
                 "peak 3.0 GiB on the fullest device", "predicted 2.0 GiB per device"):  # fmt: skip
        assert part in printed, part


@pytest.mark.parametrize("matrix_learning_rate", [None, 2e-2])
@pytest.mark.parametrize("terminal", [False, True])
def test_lines_fit_120_columns(tmp_path: Path, terminal: bool, matrix_learning_rate: float | None) -> None:
    shown, screen = view(terminal)
    shown.start(run_info(tmp_path, steps=1_000_000))
    memory = dict.fromkeys(("memory_bytes", "memory_peak_bytes", "memory_limit_bytes"), 100 * 2**30 - 2**28)
    shown.step(record(1_000_000, loss=12.3456, mfu=0.5, step_time_s=1234.5, **memory, eta_s=9 * 86400.0, grad_norm=1e-9,
                      matrix_learning_rate=matrix_learning_rate))  # fmt: skip
    shown.evaluation(1_000_000, 12.5, 12.75)
    shown.close()
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text(screen)).replace("\r", "\n").splitlines()
    assert any("1000000" in line for line in lines)
    assert max(len(line) for line in lines) <= 120


def test_work_before_the_first_step_is_one_line() -> None:
    for terminal in (False, True):
        shown, screen = view(terminal)
        for done in (0, 10, 20):
            shown.progress("Computing 20 documents.", done, 20)
        assert text(screen).count("Computing") == 1


def test_a_terminal_gets_a_progress_bar_and_its_cursor_back_also_from_a_run_that_fails(tmp_path: Path) -> None:
    shown, screen = view(terminal=True)
    shown.start(run_info(tmp_path))
    shown.step(record(1))
    assert "/20" in text(screen) and "\x1b[?25h" not in text(screen)
    shown.close()
    assert "\x1b[?25h" in text(screen)


@pytest.mark.parametrize(
    ("changes", "shows"),
    [
        ({"memory_bytes": 2**30, "memory_kind": "host"}, r" host mem .*\n.* 1\.0 GiB "),
        (
            {"memory_bytes": round(51.26 * 2**30), "memory_peak_bytes": round(62.14 * 2**30)}
            | {"memory_limit_bytes": round(75.3 * 2**30)},
            r" GiB/peak/max .*\n.* 51\.3/62\.1/75 ",
        ),
        ({"matrix_learning_rate": 2e-2}, r" lr matrix lr +s/step .*\n.* 3\.00e-04 +2\.0e-02 "),
    ],
    ids=["the host's memory", "a device's memory", "the rate of Muon's matrices"],
)
def test_what_is_known_has_a_column_and_what_is_not_has_none(changes: dict[str, Any], shows: str) -> None:
    shown, screen = view()
    shown.step(record(1))
    assert not any(word in text(screen) for word in ("MFU", "mem", "GiB", "matrix lr"))
    shown.step(record(2, **changes))
    assert re.search(shows, text(screen))


def test_experts_have_a_column_for_their_load_and_a_line_under_the_heading() -> None:
    found = {"load": 1.53, "rank_load": 1.21, "entropy": 2.06, "dropped": 0.0}
    shown, screen = view()
    shown.step(record(1, blocks={"experts": found}))
    shown.step(record(2, blocks={"experts": found | {"load": 1.48}}))
    shown.step(record(3, blocks={"experts": found | {"clusters": 0.4, "dropped": 0.25}}, eval_loss=2.0))
    title, first, under, second, third, last = text(screen).splitlines()
    assert "load" in title and "1.53" in first and "1.48" in second and "1.53" in third
    assert "experts: rank load 1.21, entropy 2.06, dropped 0" in under and "dropped" not in second
    assert "dropped 0.25, clusters 0.4" in last


def test_a_sample_cannot_move_the_cursor_or_be_interpreted_as_markup(tmp_path: Path) -> None:
    shown, screen = view(terminal=True)
    shown.sample("x = [bold]", "\x1b[2J\x07\ry")
    printed = text(screen)
    assert "x = [bold]" in printed and "\x1b[2J" not in printed and "\x07" not in printed and "?y" in printed


def test_a_console_without_unicode_prints_what_it_can() -> None:
    shown, screen = view(encoding="ascii")
    shown.sample("naïve", "→ ok")
    assert "na?ve" in text(screen) and "? ok" in text(screen)


def test_the_end_names_only_files_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").touch()
    (tmp_path / "checkpoints").mkdir()
    shown, screen = view()
    shown.start(run_info(tmp_path))
    shown.end(summary())
    printed = text(screen)
    assert "metrics.jsonl" in printed and "checkpoints" in printed
    assert "loss.png" not in printed and "tensorboard" not in printed


def test_the_header_comes_back_in_a_long_run() -> None:
    shown, screen = view()
    for step in range(60):
        shown.step(record(step))
    assert text(screen).count("grad norm") == 3

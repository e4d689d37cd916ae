"""A real browser clicks through the page and looks at it; nothing may be printed as an error, thrown or asked for."""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from jaxpar.report import main
from tests.browser import Browser, browser
from tests.observe.report.written_runs import BASELINE, loss_at, write_run

pytestmark = pytest.mark.long

LOSS, NORM, RATE = (f"#charts figure:nth-child({number})" for number in (1, 2, 3))
BLUE, ORANGE = (42, 111, 187), (194, 86, 15)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `one.html`, of a run, and `two.html`, of two."""
    folder = tmp_path_factory.mktemp("pages")
    first, second = write_run(folder / "first"), write_run(folder / "second", floor=2.0, optimizer="muon")
    assert main([str(first), "--out", str(folder / "one.html")]) == 0
    assert main([str(first), str(second), "--out", str(folder / "two.html")]) == 0
    return folder


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as made:
        yield made


@pytest.fixture
def page(chromium: Browser) -> Iterator[Browser]:
    """The browser, which must have nothing to complain about when a test is done."""
    chromium.resize(1280, 900)
    chromium.dark(False)
    chromium.console.clear()
    chromium.requests.clear()
    yield chromium
    assert chromium.console == [] and chromium.requests == []


def labels(page: Browser, chart: str, axis: str) -> list[str]:
    return page.read(f"[...document.querySelectorAll('{chart} svg text.{axis}')].map(text => text.textContent)")


def drawn(page: Browser, chart: str) -> int:
    """Lines that a chart shows."""
    return page.count(f"{chart} > svg .line")


def values(page: Browser, chart: str) -> list[str]:
    return page.read(f"[...document.querySelectorAll('{chart} .keys .value')].map(text => text.textContent)")


def pixels(png: bytes, color: tuple[int, int, int]) -> int:
    """How many pixels of a picture are nearly of a color."""
    from matplotlib.image import imread

    found = imread(io.BytesIO(png), format="png")[..., :3] * 255
    return int((np.abs(found - np.array(color)).max(axis=-1) < 24).sum())


def test_the_page_shows_its_curves(page: Browser, pages: Path, tmp_path: Path) -> None:
    page.open(pages / "one.html")
    assert page.count("#charts figure") == 6
    assert drawn(page, LOSS) == 3, "training, validation, baseline"
    assert values(page, LOSS) == [f"{loss_at(60):.4f}", f"{loss_at(60) + 0.1:.4f}", f"{BASELINE:.4f}"]
    assert labels(page, LOSS, "x") == ["10", "20", "30", "40", "50", "60"]
    assert labels(page, RATE, "y") == ["0", "0.5e-3", "1.0e-3"]
    assert page.read("document.querySelector('.card b').textContent") == "246k"
    png = page.screenshot(tmp_path / "one.png")
    assert pixels(png, BLUE) > 1000, "the training loss"
    assert pixels(png, ORANGE) > 500, "the validation loss"


def test_a_short_run_has_whole_steps_on_its_axis(page: Browser, tmp_path: Path) -> None:
    assert main([str(write_run(tmp_path / "short", steps=4)), "--out", str(tmp_path / "short.html")]) == 0
    page.open(tmp_path / "short.html")
    shown = labels(page, LOSS, "x")
    assert "4" in shown and all(label.isdigit() for label in shown)


def test_a_log_scale_of_one_chart_and_of_all(page: Browser, pages: Path) -> None:
    page.open(pages / "one.html")
    before = labels(page, LOSS, "y"), labels(page, NORM, "y")
    page.click(f"{NORM} button.log")
    assert page.read(f"document.querySelector('{NORM} button.log').getAttribute('aria-pressed')") == "true"
    assert labels(page, NORM, "y") == ["1", "2", "5"] and labels(page, LOSS, "y") == before[0]
    page.click("#log-all")
    assert page.count("button.log[aria-pressed=true]") == 6
    page.click("#log-all")
    assert (labels(page, LOSS, "y"), labels(page, NORM, "y")) == before


def test_a_series_is_switched_off_and_on(page: Browser, pages: Path) -> None:
    page.open(pages / "one.html")
    low = labels(page, LOSS, "y")
    page.click(f"{LOSS} .keys button:nth-child(1)")
    assert drawn(page, LOSS) == 2
    assert labels(page, LOSS, "y") != low, "the axis fits what is left"
    for key in (2, 3):
        page.click(f"{LOSS} .keys button:nth-child({key})")
    assert page.text(f"{LOSS} > svg text") == "nothing to show"
    for key in (1, 2, 3):
        page.click(f"{LOSS} .keys button:nth-child({key})")
    assert (drawn(page, LOSS), labels(page, LOSS, "y")) == (3, low)


def test_the_pointer_reads_the_values_of_one_step_in_every_chart(page: Browser, pages: Path) -> None:
    page.open(pages / "one.html")
    page.hover(f"{LOSS} > svg", part=0.5)
    step = int(page.text(f"{LOSS} .at").removeprefix("step "))
    assert 20 <= step <= 40 and step % 2 == 0
    assert values(page, LOSS)[0] == f"{loss_at(step):.4f}" and page.text(f"{NORM} .at") == f"step {step}"
    assert page.count(".cursor[visibility=visible]") == 6
    page.hover("h1")
    assert page.text(f"{LOSS} .at") == "last, step 60" and page.count(".cursor[visibility=visible]") == 0


def test_arrow_keys_go_from_step_to_step(page: Browser, pages: Path) -> None:
    page.open(pages / "one.html")
    page.read(f"document.querySelector('{LOSS} > svg').focus()")
    for expected in (60, 58, 56):
        page.press("ArrowLeft")
        assert page.text(f"{NORM} .at") == f"step {expected}"


def test_dragging_looks_closer_at_all_charts_and_a_button_goes_back(page: Browser, pages: Path) -> None:
    page.open(pages / "one.html")
    assert page.read("document.getElementById('whole').hidden")
    page.drag(f"{NORM} > svg", 0.4, 0.7)
    shown = [int(text) for text in labels(page, LOSS, "x")]
    assert shown and 15 < min(shown) <= max(shown) < 50
    page.click("#whole")
    assert labels(page, LOSS, "x")[-1] == "60"


def test_smoothing_draws_a_smooth_line_over_a_faint_one(page: Browser, pages: Path) -> None:
    page.open(pages / "one.html")
    assert page.count(".line.raw") == 0
    page.read("document.getElementById('smoothing').focus()")
    for _ in range(30):
        page.press("ArrowRight")
    assert page.text(".toolbar output") == "0.60"
    assert page.count(f"{LOSS} > svg .line.raw") == 1, "the training loss; not the validation loss"
    assert values(page, LOSS)[0] != f"{loss_at(60):.4f}" and values(page, LOSS)[1] == f"{loss_at(60) + 0.1:.4f}"


@pytest.mark.parametrize(("axis", "last"), [("tokens", "200k"), ("time", "30 s")])
def test_the_x_axis_can_be_tokens_or_time(page: Browser, pages: Path, axis: str, last: str) -> None:
    page.open(pages / "one.html")
    page.choose("#x-axis", axis)
    assert labels(page, LOSS, "x")[-1] == last, "60 steps of 4,096 tokens and half a second"


def test_parts_are_opened_and_folded(page: Browser, pages: Path) -> None:
    page.open(pages / "one.html")
    assert "optimizer.weight_decay" not in page.text("body")
    page.click("#configuration summary")
    assert "optimizer.weight_decay" in page.text("#configuration")
    page.click("#plan summary")
    assert "not cudnn" not in page.text("body")


def test_a_chart_of_rewards_has_no_baseline_of_losses(page: Browser, tmp_path: Path) -> None:
    rewarded = write_run(tmp_path / "rewarded", metrics={"reward": 0.5, "eval_reward": 0.75})
    assert main([str(rewarded), "--out", str(tmp_path / "page.html")]) == 0
    page.open(tmp_path / "page.html")
    rewards = "#charts figure:nth-child(2)"
    assert page.text(f"{rewards} h3") == "Reward" and drawn(page, rewards) == 2
    assert drawn(page, LOSS) == 3, "training, validation, baseline"


def test_two_runs_lie_over_each_other(page: Browser, pages: Path, tmp_path: Path) -> None:
    page.open(pages / "two.html")
    assert drawn(page, LOSS) == 5, "two of each run, and their one baseline"
    assert values(page, NORM) == [values(page, NORM)[0]] * 2
    names = page.read(f"[...document.querySelectorAll('{LOSS} .keys button')].map(b => b.innerText.split(/\\s+/)[0])")
    assert names == ["first", "first", "baseline", "second", "second"]
    assert "optimizer.name\tadamw\tmuon" in page.text("#difference")
    page.read("document.getElementById('charts').scrollIntoView()")
    png = page.screenshot(tmp_path / "two.png")
    assert pixels(png, BLUE) > 500 and pixels(png, ORANGE) > 500


def test_a_phone_shows_it_without_moving_sideways(page: Browser, pages: Path) -> None:
    page.resize(390, 844, phone=True)
    for name in ("one.html", "two.html"):
        page.open(pages / name)
        page.read("document.querySelectorAll('details').forEach(part => { part.open = true; })")
        assert page.read("document.documentElement.scrollWidth") == 390
        assert page.read(f"document.querySelector('{LOSS} > svg').getBoundingClientRect().width") > 330
        assert labels(page, LOSS, "x")[-1] == "60"


def test_a_dark_page_is_dark_and_can_be_read(page: Browser, pages: Path) -> None:
    for dark in (False, True):
        page.dark(dark)
        page.open(pages / "one.html")
        contrast = page.read(
            """(() => {
              const part = color => { const x = color / 255;
                return x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4; };
              const light = text => { const [r, g, b] = text.match(/\\d+/g).map(Number).map(part);
                return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
              const style = (name, key) => getComputedStyle(document.querySelector(name))[key];
              const paper = light(style('body', 'backgroundColor'));
              const ratio = color => { const other = light(color);
                return (Math.max(paper, other) + 0.05) / (Math.min(paper, other) + 0.05); };
              return [paper, ratio(style('body', 'color')), ratio(style('.dim', 'color')),
                ratio(style('path.run0', 'stroke')), ratio(style('path.second', 'stroke'))];
            })()"""
        )
        assert (contrast[0] < 0.05) is dark
        assert min(contrast[1:3]) > 4.5, "text, by WCAG's measure"
        assert min(contrast[3:]) > 3, "lines"


def test_paper_shows_everything(page: Browser, pages: Path) -> None:
    page.open(pages / "one.html")
    assert page.pdf().startswith(b"%PDF")
    assert page.count("details:not([open])") == 1, "folded again after printing"


def test_a_long_run_with_a_spike_and_a_restart(page: Browser, pages: Path, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "long", steps=20_000, skipped_steps=1)
    with (folder / "events.jsonl").open("a") as file:
        file.write('{"event": "start", "step": 7000}\n{"event": "anomaly", "step": 9000, "text": "a spike"}\n')
    assert main([str(folder)]) == 0
    page.open(folder / "report.html")
    assert page.read("document.querySelector('path.run0').getAttribute('d').split('L').length") <= 2000
    assert page.count(f"{LOSS} > svg .skipped") == 1 and page.count(f"{NORM} > svg .restart") == 1
    assert page.text(f"{LOSS} > svg .anomaly title") == "a spike" and labels(page, LOSS, "x")[-1] == "20,000"


def test_what_cannot_be_drawn_leaves_the_page_whole(page: Browser, tmp_path: Path) -> None:
    lines = [
        '{"step": 0, "loss": 1e29, "grad_norm": 0, "step_time_s": -1, "tokens_per_second": 1e-300}',
        '{"step": 999999999999, "loss": -1e29, "grad_norm": 0, "learning_rate": 5e-324}',
    ]
    for count in (0, 1, 2):
        folder = tmp_path / f"run{count}"
        folder.mkdir()
        (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines[:count]))
        assert main([str(folder)]) == 0
        page.open(folder / "report.html")
        if count:
            page.click("#log-all")
            page.choose("#x-axis", "time")
            page.hover("#charts figure:nth-child(1) > svg")


def test_a_sweep_is_sorted_by_a_click_and_its_runs_switched_off_and_on(page: Browser, tmp_path: Path) -> None:
    floors = {"a": 2.2, "b": 2.0, "c": 2.4}
    folders = [str(write_run(tmp_path / name, floor=floor)) for name, floor in floors.items()]
    folders.append(str(write_run(tmp_path / "short", steps=4)))
    assert main([*folders, "--out", str(tmp_path / "sweep.html")]) == 0
    page.open(tmp_path / "sweep.html")
    names = lambda: page.read(
        "[...document.querySelectorAll('#sweep tbody tr')].map(row => row.cells[0].innerText.trim())"
    )
    assert names() == ["a", "b", "c", "short"]
    page.click("#sweep th:nth-child(2) button")
    assert names() == ["b", "a", "c", "short"], "without a validation loss, it is last"
    page.click("#sweep th:nth-child(2) button")
    assert names() == ["c", "a", "b", "short"]
    assert page.read("document.querySelector('#sweep th:nth-child(2)').getAttribute('aria-sort')") == "descending"
    assert drawn(page, LOSS) == 8, "two of each run but the short one, and a baseline"
    page.click("#sweep button[data-run='1']")
    assert drawn(page, LOSS) == 6 and drawn(page, NORM) == 3
    page.click("#sweep button[data-run='1']")
    assert drawn(page, LOSS) == 8

"""`python -m jaxpar.schedule`, as a user types it."""

import json
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from xml.etree import ElementTree

import pytest

from jaxpar.pipeline.schedules import SCHEDULES, make_schedule
from jaxpar.pipeline.tables import read_schedule
from jaxpar.schedule import main
from tests.sentences import refused_by_command

REPOSITORY = Path(__file__).parents[1]
SIZES = ("--stages", "4", "--microbatches", "8")
ONE_F_ONE_B = ("--name", "1f1b", *SIZES)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, and a screen of no terminal."""
    monkeypatch.chdir(tmp_path)
    for name in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def printed(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The output of a command that succeeds."""
    assert main(arguments) == 0
    out, err = capfd.readouterr()
    assert err == ""
    return out


def numbers(capfd: pytest.CaptureFixture[str], *arguments: str) -> dict:
    return json.loads(printed(capfd, *arguments, "--json"))


def test_json_has_the_numbers_of_1f1b(capfd: pytest.CaptureFixture[str]):
    found = numbers(capfd, *ONE_F_ONE_B)
    assert (found["makespan"], found["ideal"], found["bubble_fraction"]) == (33, 24, 9 / 24)
    assert found["lockstep_bubble_fraction"] == 9 / 24
    assert (found["peak_in_flight"], found["transfers"]) == ([4, 3, 2, 1], 48)


def test_times_are_those_of_the_command_line(capfd: pytest.CaptureFixture[str]):
    work = {
        "forward": "2", "backward": "3", "weight": "1", "head": "0.5", "transfer": "0.05", "stage-times": "1,1,1.2,1",
    }  # fmt: skip
    found = numbers(capfd, *ONE_F_ONE_B, *(word for name, value in work.items() for word in (f"--{name}", value)))
    assert found["ideal"] == (8 * 5 * 4.2 + 8 * 0.5) / 4
    whole = numbers(capfd, *ONE_F_ONE_B, "--forward", "2", "--backward", "3")
    assert found["makespan"] > whole["makespan"] > 40


def test_the_mode_decides_what_is_drawn_and_not_what_json_states(capfd: pytest.CaptureFixture[str]):
    drawn = {mode: printed(capfd, *ONE_F_ONE_B, "--mode", mode) for mode in ("async", "lockstep", "branching")}
    assert len(set(drawn.values())) == 3
    for text in drawn.values():
        assert all(f"\n{mode} " in text for mode in drawn), "all modes are reported"
    reported = {printed(capfd, *ONE_F_ONE_B, "--mode", mode, "--json") for mode in drawn}
    assert len(reported) == 1


def test_the_screen_shows_grid_and_numbers(capfd: pytest.CaptureFixture[str]):
    out = printed(capfd, *ONE_F_ONE_B, "--sent", "32MiB", "--stash", "1GiB")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == "1f1b: 4 ranks, 8 microbatches"
    assert "rank 3 . . . 3F0 3B0---- 3F1 3B1---- 3F2 3B2---- 3F3" in "\n".join(lines)
    assert "async 33 24 9 37.5% 4 3 2 1 4.0 GiB 3.0 GiB 2.0 GiB 1.0 GiB" in lines
    assert "lockstep 33 24 9 37.5% 7 5 3 1 7.0 GiB 5.0 GiB 3.0 GiB 1.0 GiB" in lines
    assert "Sent to other ranks: 48 activations and gradients, 1.5 GiB; by rank: 8 16 16 8." in lines
    assert "\x1b" not in out


def test_dashes_and_underscores_and_case_are_alike(capfd: pytest.CaptureFixture[str]):
    names = ("zb-h1", "zb_h1", "ZB_H1")
    assert len({printed(capfd, "--name", name, *SIZES) for name in names}) == 1


def test_all_schedules_side_by_side(capfd: pytest.CaptureFixture[str]):
    found = numbers(capfd, "--compare", *SIZES, "--virtual", "2")
    assert list(found) == list(SCHEDULES)
    assert found["one-stage"] == {"name": "one-stage", "refused": "one-stage is for 1 pipeline rank, got 4"}
    assert found["interleaved"] == numbers(capfd, "--name", "interleaved", "--virtual", "2", *SIZES)
    out = printed(capfd, "--compare", *SIZES, "--virtual", "2")
    assert "interleaved 2 18.8% 18.8% 41.7% 28.5 28.5 5.5 5.5 112" in " ".join(out.split())
    assert "cannot be made: one-stage is for 1 pipeline rank, got 4" in out


def test_files_are_written_also_over_others(folder: Path, capfd: pytest.CaptureFixture[str]):
    (folder / "a.svg").write_text("older")
    out = printed(capfd, *ONE_F_ONE_B, "--out", "a.svg", "--out", "a.json", "--out", "a.csv")
    assert all(f"Wrote a.{ending}" in out for ending in ("svg", "json", "csv"))
    assert ElementTree.parse(folder / "a.svg").getroot().attrib["aria-label"] == "1f1b: 4 ranks, 8 microbatches"
    trace = json.loads((folder / "a.json").read_text())
    assert sum(event["ph"] == "X" for event in trace["traceEvents"]) == 64
    assert read_schedule(folder / "a.csv").orders == make_schedule("1f1b", ranks=4, microbatches=8).orders


def test_files_beside_json_leave_it_alone(capfd: pytest.CaptureFixture[str]):
    assert numbers(capfd, *ONE_F_ONE_B, "--out", "a.svg") == numbers(capfd, *ONE_F_ONE_B)


@pytest.mark.parametrize("mode", ["async", "lockstep"])
def test_a_table_that_was_written_is_read_back(mode: str, folder: Path, capfd: pytest.CaptureFixture[str]):
    made = numbers(capfd, "--name", "v-half", *SIZES, "--mode", mode, "--out", "mine.csv")
    assert (folder / "mine.csv").read_text().startswith("# ticks\n") == (mode == "lockstep")
    read = numbers(capfd, "--file", "mine.csv", "--transfer", "0")
    if mode == "lockstep":
        assert read["lockstep_bubble_fraction"] == made["lockstep_bubble_fraction"]
    else:
        assert (read["name"], made["name"]) == ("mine", "v-half")
        assert (read["makespan"], read["peak_in_flight"]) == (made["makespan"], made["peak_in_flight"])


def test_a_faulty_table_is_refused_with_the_cell_marked(folder: Path, capfd: pytest.CaptureFixture[str]):
    (folder / "mine.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1F1,1B1\n")
    status = main(["--file", "mine.csv"])
    out, err = capfd.readouterr()
    first, *grid = err.splitlines()
    refused_by_command(status, out, first, "mine", "1F1", "line 2, column 4", "already in column 3")
    assert grid[-1] == "rank 1 | 1F0 1B0 1F1 >1F1< 1B1"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ("--name 1f1c --stages 4 --microbatches 8", "'1f1c' | 1f1b?"),
        ("--name 1f1b --stages 0 --microbatches 8", "--stages | from 1 | '0'"),
        ("--name 1f1b --stages 4", "--microbatches is missing | --name"),
        ("--compare --microbatches 4", "--stages is missing | --compare"),
        ("--name 1f1b --stages 9999 --microbatches 9999", "299,940,003 | at most 200,000"),
        ("--stages 4 --microbatches 8", "--name | --file | --compare | none"),
        ("", "--name | --file | --compare | none"),
        ("--name 1f1b --compare --stages 4 --microbatches 8", "got --name and --compare"),
        ("--compare --stages 4 --microbatches 8 --out a.svg", "--out | with --compare"),
        ("--compare --stages 4 --microbatches 8 --mode async", "--mode | with --compare"),
        ("--file a.csv --stages 4", "--stages | with --file"),
        ("--file none.csv", "--file none.csv | No such file"),
        (f"--file {sys.executable}", "expected a CSV file | UTF-8"),
        ("@ --forward -1", "--forward | from 0 | -1"),
        ("@ --transfer nan", "--transfer | from 0 | nan"),
        ("@ --stage-times 1,1,x,1", "--stage-times | from 0 | got x"),
        ("@ --stage-times 1,2", "2 entries | 1f1b needs 4"),
        ("@ --weight 3", "--weight | --backward (2) | 3"),
        ("@ --forward 0 --backward 0", "--forward and --backward | both are 0"),
        ("@ --sent 3XB", "--sent | 24MiB | '3XB'"),
        ("@ --out /no/such/a.svg", "--out /no/such/a.svg | No such file"),
        ("@ --out a.txt", "--out a.txt | .svg, .json or .csv"),
        ("@ --out a.svg --out b.svg", "--out b.svg | one file | a.svg"),
        ("@ --cluster h100:1x8", "--cluster needs --config"),
        ("@ --set model.layers=4", "--set needs --config"),
        ("--config a.yaml", "--cluster is missing | --cluster h100:4x8"),
        ("--config a.yaml --cluster h100:1x8 --stages 4", "--stages | --set parallel.pipe=4"),
        ("--config a.yaml --cluster h100:1x8 --microbatches 4", "--microbatches | --set parallel.microbatches=4"),
        ("--config a.yaml --cluster h100:1x8 --file b.csv", "--file | with --config"),
        ("--config a.yaml --cluster h100:1x8", "a.yaml"),
        ("--compare --stages 4 --microbatches 8 --stage-times 1,2", "stage times | 2 entries"),
    ],
)
def test_a_mistake_gets_one_sentence(arguments: str, parts: str, capfd: pytest.CaptureFixture[str]):
    status = main(arguments.replace("@", " ".join(ONE_F_ONE_B)).split())
    refused_by_command(status, *capfd.readouterr(), *parts.split(" | "))


def test_help_teaches_every_schedule_and_mode(capfd: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    out = capfd.readouterr().out
    assert ended.value.code == 0
    assert all(f"\n  {name}" in out for name in [*SCHEDULES, "async", "lockstep", "branching"])


def test_the_examples_of_help_work(folder: Path, capfd: pytest.CaptureFixture[str]):
    (folder / "configs").symlink_to(REPOSITORY / "configs")
    with pytest.raises(SystemExit):
        main(["--help"])
    examples = [line.split()[3:] for line in capfd.readouterr().out.splitlines() if line.startswith("  python -m")]
    assert len(examples) == 5
    for example in examples:
        printed(capfd, *example)


def test_it_ends_quietly_when_nobody_reads_on():
    command = [sys.executable, "-m", "jaxpar.schedule", "--name", "1f1b", *SIZES]
    with subprocess.Popen([*command, "--json"], cwd=REPOSITORY, stdout=PIPE, stderr=PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0

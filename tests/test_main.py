"""`jaxpar` and `python -m jaxpar`: the commands listed, and run."""

import tomllib
from pathlib import Path

import pytest

import jaxpar
from jaxpar.__main__ import COMMANDS, main
from tests.observe.report.written_runs import write_run
from tests.processes import ROOT, run_python
from tests.sentences import refused_by_command


def test_every_command_is_listed(capsys: pytest.CaptureFixture[str]):
    modules = {file.stem for file in (ROOT / "jaxpar").glob("[!_]*.py") if "\n@command(" in file.read_text()}
    assert set(COMMANDS) == modules
    assert main([]) == main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(any(line.split()[:1] == [name] for line in lines) for name in COMMANDS)


def test_a_command_is_run_with_its_arguments(capsys: pytest.CaptureFixture[str]):
    assert main(["schedule", "--name", "1f1b", "--stages", "2", "--microbatches", "4", "--json"]) == 0
    assert '"1f1b"' in capsys.readouterr().out
    refused_by_command(main(["trian"]), *capsys.readouterr(), "'trian'", "did you mean train?")
    assert main(["train", "--confg", "x"]) == 2, "the exit code is the command's"


WITHOUT_LIBRARIES = """
import sys
from jaxpar.__main__ import COMMANDS, main

def imported(*names):
    assert not {*names, "flax", "optax", "grain", "orbax", "matplotlib"} & {*sys.modules}, sys.argv

main([])
imported("jax", "numpy", "rich")
for name in COMMANDS:
    try:
        main([name, "--help"])
    except SystemExit as end:
        assert end.code == 0
    imported("jax", "numpy", "rich", "tokenizers", "pyarrow")
assert main(["report", sys.argv[1]]) == 0
imported("jax", "numpy")
assert main(["schedule", "--compare", "--stages", "4", "--microbatches", "8"]) == 0
imported("jax", "jaxlib")
"""


def test_help_reports_and_schedules_import_no_large_library(tmp_path: Path):
    folder = write_run(tmp_path / "run", steps=4)
    done = run_python("-c", WITHOUT_LIBRARIES, folder)
    assert done.returncode == 0, done.stderr
    for shown in ("--set SECTION.KEY=VALUE", "checkpoint.every", "--input PATTERN", "--inspect FOLDER"):
        assert shown in done.stdout
    assert str(ROOT) not in done.stdout
    script = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["jaxpar"]
    assert script == "jaxpar.__main__:main"


def test_completion_shows_what_is_public():
    assert {"Trainer", "Config", "load_config"} <= set(dir(jaxpar))
    assert all(not name.startswith("_") or name.startswith("__") for name in dir(jaxpar))


def test_a_trainer_shows_no_parts_of_its_own():
    shown = [name for name in dir(jaxpar.Trainer) if not name.startswith("_")]
    described = jaxpar.Trainer.__doc__ or ""
    assert "save" in shown and [name for name in shown if name not in described] == []

"""`python -m jaxpar.inspect`, as a user types it."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from jaxpar.compiler import inspection
from jaxpar.config.strict_json import json_text
from jaxpar.inspect import main
from tests.compiler.inspected import CACHE, CLUSTER, YAML, hsdp
from tests.sentences import refused_by_command


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file whose step is compiled already once `hsdp()` was asked for."""
    monkeypatch.setattr(inspection, "DEFAULT_CACHE", CACHE)
    file = tmp_path / "hsdp.yaml"
    file.write_text(YAML)
    return file


def run(*arguments: Any) -> int:
    return main([str(argument) for argument in arguments])


def test_json_is_all_that_is_printed(config: Path, capfd: pytest.CaptureFixture[str]):
    _, report = hsdp()
    capfd.readouterr()
    assert run("--config", config, "--cluster", CLUSTER, "--json") == 0
    out, _ = capfd.readouterr()
    printed = json.loads(out)
    assert 0 < printed["utilisation"].pop("bfloat16") < 1, "of the model, which the compiled step does not know"
    assert printed == json.loads(json_text(report.to_dict())) | {"config": "hsdp"}


def test_output_without_a_terminal_is_as_wide_as_the_widest_table(monkeypatch: pytest.MonkeyPatch):
    widths: list[int] = []
    monkeypatch.setattr(inspection, "_report", lambda *_: (None, None))
    monkeypatch.setattr(inspection, "print_report", lambda _, console: widths.append(console.width))
    inspection.inspect_step(Namespace(config=None, cluster=CLUSTER, json=False), None, None)
    assert widths == [140]


def test_the_picture_is_of_both_directions(config: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    hsdp()
    picture = tmp_path / "one.svg"
    assert run("--config", config, "--cluster", CLUSTER, "--out", picture) == 0
    assert [picture.read_text().count(f"{way}: ") for way in ("Forward", "Backward")] == [1, 1]
    assert f"Picture: {picture}" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--cluster", "h100:1x6"], "parallel.replica: -1"),
        (["--cluster", CLUSTER, "--set", "parallel.tensr=2"], "tensor"),
        (["--cluster", CLUSTER, "--out", "/no/such/folder/x.html"], "/no/such/folder | does not exist"),
        (["--cluster", CLUSTER, "--out", "x.png"], "--out x.png | .html or .svg"),
        (["--cluster", CLUSTER, "--no-cache", "--timeout", "0.2"], "0.2 s | stopped"),
    ],
)
def test_a_mistake_gets_one_sentence(config: Path, arguments: list[str], parts: str, capfd):
    refused_by_command(run("--config", config, *arguments), *capfd.readouterr(), *parts.split(" | "))

"""The notebooks run from the first cell to the last, and what is kept in them is what they show."""

import base64
import json
import re
import struct
from pathlib import Path

import pytest

from tests.docs.notebooks import FOLDER, NAMES, execute, read, sources

KEPT_BYTES = 400_000


def test_every_notebook_is_covered():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_outputs_that_are_kept_belong_to_the_code(name: str):
    notebook = read(name)
    assert notebook.metadata["sources"] == sources(notebook), (
        f"the code was changed: run `python -m tests.docs.notebooks {name}`, look at it, and commit it"
    )
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert {output.name for output in outputs if output.output_type == "stream"} == {"stdout"}
    assert (FOLDER / f"{name}.ipynb").stat().st_size < KEPT_BYTES


@pytest.mark.parametrize("name", NAMES)
def test_their_links_lead_to_files(name: str):
    text = "".join(cell.source for cell in read(name).cells if cell.cell_type == "markdown")
    files = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert [file for file in files if not (FOLDER / file).exists()] == []


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_the_machine_that_ran_it_is_kept(name: str):
    text = (FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
    assert str(FOLDER.parents[1]) not in text
    assert "/home/" not in text and "Traceback" not in text


@pytest.mark.matrix(ci=1)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_it_runs(name: str, tmp_path: Path):
    notebook = execute(name, tmp_path)
    kept, made = (
        [output for cell in each.cells if cell.cell_type == "code" for output in cell.outputs]
        for each in (read(name), notebook)
    )
    made = [output for output in made if output.get("name") != "stderr"]
    assert [_kind(output) for output in made] == [_kind(output) for output in kept]


def _kind(output: dict[str, object]) -> str:
    """The sort of an output: a picture of some size, a table, or some lines of text."""
    data = output.get("data")
    if isinstance(data, dict) and "image/png" in data:
        width, height = struct.unpack(">II", base64.b64decode(data["image/png"])[16:24])
        return f"picture of {round(width, -2)} x {round(height, -2)}"
    if isinstance(data, dict):
        return json.dumps(sorted(data))
    return f"{len(str(output['text']).splitlines())} lines"

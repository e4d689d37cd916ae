"""tests/README.md: the files that it names are there, and its example passes."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
PAGE = (FOLDER / "README.md").read_text()


def test_every_file_that_the_page_names_is_there():
    missing = []
    for row in re.findall(r"^\| (`.*?`) \|", PAGE, re.M):
        folder = FOLDER
        for name in re.findall(r"`([^`]*[./][^`]*)`", row):
            # In a row the second of two files may go without the folder of the first.
            found = [place / name for place in (FOLDER, folder) if (place / name).exists()]
            missing += [] if found else [name]
            folder = found[0].parent if found else folder
    assert not missing


@pytest.mark.long
@pytest.mark.parametrize("layout", [0, 1])
def test_the_example_passes(layout: int, tmp_path: Path):
    [example] = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    (tmp_path / "example.py").write_text(example)
    spec = importlib.util.spec_from_file_location("example", tmp_path / "example.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    test = module.test_a_layer_with_the_option_has_the_gradients_of_one_device
    test(test.pytestmark[0].args[1][layout])

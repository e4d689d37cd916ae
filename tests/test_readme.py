"""The example of tests/README.md passes."""

import importlib.util
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
PAGE = (FOLDER / "README.md").read_text()


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

"""The lines of Python in docs/python.md do what they show."""

import doctest
import re
from pathlib import Path

import jax
import pytest

from jaxpar import Trainer

ROOT = Path(__file__).parents[2]
SMALLER = (
    "run.steps=2", "run.compile_cache=null", "data.sequence_length=64", "data.batch_size=4", "evaluation.batches=0",
    "evaluation.sample_tokens=0", "parallel.fsdp=1", "parallel.tensor=1", "parallel.context=1",
)  # fmt: skip


@pytest.mark.long
def test_the_lines_of_python_md(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    block = max(re.findall(r"(?:^    .*\n)+", page, re.M), key=lambda text: text.count(">>>"))
    assert block.count(">>>") > 5
    monkeypatch.chdir(tmp_path)
    Trainer(ROOT / "configs/quickstart.yaml", overrides=SMALLER, devices=jax.devices()[:1]).fit([])
    example = doctest.DocTestParser().get_doctest(block, {}, "docs/python.md", None, None)
    assert not doctest.DocTestRunner().run(example).failed

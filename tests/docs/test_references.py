"""Pages name only what exists, and each kind of mistake is reported."""

import json
import os
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from jaxpar.interop.families.registry import FAMILIES
from tests.docs.pages import read_page
from tests.docs.references import Repository, problems
from tools.commands import page as commands_page
from tools.commands import parser_of

ROOT = Path(__file__).parents[2]
LEFT_OUT = re.compile(r"__pycache__|runs|build|dist|\.(?!ci$).*")


def files() -> Iterator[str]:
    """Paths of the repository's files, without those that git ignores."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if not LEFT_OUT.fullmatch(name)]
        inside = os.path.relpath(folder, ROOT)
        yield from (name if inside == "." else f"{inside}/{name}" for name in names)


def parser_flags(module: str, words: Sequence[str]) -> list[str] | None:
    """Flags that the parser of a command of jaxpar accepts; the examples in `tests/extending` take the arguments of
    `jaxpar.train`. No command imports JAX before it parses its arguments."""
    module = re.sub(r"tests\.extending\.\w+", "jaxpar.train", module)
    if not re.fullmatch(r"jaxpar\.\w+", module):
        return None
    parser = parser_of(module, next(iter(words), "--help"))
    return None if parser is None else list(parser._option_string_actions)


REPOSITORY = Repository(frozenset(files()), cache(lambda path: (ROOT / path).read_text(encoding="utf-8")), parser_flags)
PAGES = sorted(
    path
    for path in REPOSITORY.files
    if path in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "ROADMAP.md", "tests/README.md")
    or re.fullmatch(r"docs/.*\.(md|ipynb)", path)
)


@pytest.mark.parametrize("path", PAGES)
def test_a_page_names_nothing_that_does_not_exist(path: str):
    found = problems(read_page(path, REPOSITORY.read(path)), REPOSITORY)
    assert not found, "\n".join(["", *found])


SMALL = {
    "Makefile": "LEVEL := quick\nsetup setup-test:\n\techo\ntest-all: setup-test\n\techo\n",
    "README.md": "# Here",
    "configs/small.yaml": "",
    "docs/pictures/a.svg": "",
    "jaxpar/__init__.py": '__all__ = ["Trainer"]\n',
    "jaxpar/train.py": 'import argparse\nparser.add_argument("--config")\nparser.add_argument("--set")\n',
    "jaxpar/mesh/__init__.py": "from jaxpar.mesh.rules import Rule as MeshRule\n",
    "jaxpar/mesh/rules.py": "RULES, OTHERS = {}, {}\nclass Rule:\n    axis: str\n    def of(self): self.kept = 1\n",
    "jaxpar/layout/choices/tiles.py": "",
    "launch/local.py": 'import argparse\nparser.add_argument("--processes")\n',
    "tests/mesh/test_rules.py": "def test_that_it_holds():\n    pass\n",
}


def found_in(text: str, name: str = "docs/page.md") -> list[str]:
    """The mistakes of a page of a small repository."""
    small = Repository(frozenset({*SMALL, name}), lambda path: SMALL[path])
    return problems(read_page(name, text), small)


@pytest.mark.parametrize(
    "text",
    [
        "`jaxpar/mesh/rules.py` `mesh/rules.py` `rules.py` `mesh/test_rules.py` `layout/choices/` `jaxpar/*.py`",
        "`tests/mesh/test_rules.py::test_that_it_holds[a]` `tests/mesh` `configs/small.yaml`, `test_that_it_holds`",
        "`runs/a/plan.json` `data/*.jsonl` `mlp/up` `GB/s` `.md` `jaxpar/NAME.py` `docs/<name>.md` `~/a.py`",
        "| `jaxpar/mesh/` | `rules.py` |\n|---|---|\n| `layout/choices/tiles.py` | `tiles.py` |",
        "`jaxpar.Trainer` `jaxpar.mesh.rules.RULES` `jaxpar.mesh.rules.OTHERS` `jaxpar.layout.choices` `jaxpar.NAME`",
        "`jaxpar.mesh.MeshRule.axis` `jaxpar.mesh.rules.Rule.kept` `jaxpar.mesh.rules:Rule`",
        "```python\nfrom jaxpar.mesh.rules import (\n    RULES,\n    Rule as R,\n)\n```",
        "    $ python -m jaxpar.train --config configs/small.yaml \\\n          --set model.layers=8 | head --lines 3",
        "`A=1 .venv/bin/python -m jaxpar.train --config=FILE` `train --set run.name=a` `jaxpar.train --config X`",
        "`launch/local.py --processes 2 -- python -m jaxpar.train --config X` `--processes` `--requeue` `--xla_flag=1`",
        "    make setup-test ARGS='--set run.name=a' # make all\n    A=1 make test-all && make setup setup-test",
        "`make test-all` `--set section.key=value` `--set parallel.tensor=N` `--config run.yaml`",
        "`parallel.zero` `parallel.zero: 3` `model.layers=...` `data.csv` `a.b` and a/b or jaxpar.nothing in prose",
        '```python\nTrainer("configs/small.yaml", overrides=["run.name=a", "parallel.fsdp=4"])\n```',
    ],
)
def test_a_page_whose_things_all_exist_passes(text: str):
    assert found_in(text) == []


@pytest.mark.parametrize(
    ("text", "part"),
    [
        # Paths.
        ("a\n`b\nc` d\n`jaxpar/rules.py`", "jaxpar/rules.py"),
        ("`tests/nets`", "tests/nets"),
        ("`tests/mesh/test_rules.py::test_that_it_hold`", "did you mean test_that_it_holds?"),
        ("```\nx\n\njaxpar/gone.py\n```", "jaxpar/gone.py"),
        ("a [b](other.md)\nc (configs/gone.yaml).", "configs/gone.yaml"),
        ("<!-- made by\n`jaxpar/gone.py` -->", "jaxpar/gone.py"),
        # Names.
        ("`jaxpar.mesh.rules.RULE`", "jaxpar.mesh.rules has no RULE"),
        ("`jaxpar.mesh.rules.axis`", "jaxpar.mesh.rules has no axis"),
        ("`jaxpar.mesh.MeshRule.axes`", "jaxpar.mesh.rules.Rule has no axes"),
        ("`jaxpar.mesh.rules:Ruler`", "jaxpar.mesh.rules:Ruler"),
        ("`test_that_it_hold`", "did you mean test_that_it_holds?"),
        ("`from jaxpar.mesh.rules import RULES, Ruler`", "from jaxpar.mesh.rules import Ruler"),
        ("```python\nx = 1\nfrom jaxpar.mesh import (\n    rules,\n    Ruler,\n)\n```", "import Ruler"),
        # Commands.
        ("`python -m jaxpar.trane --config X`", "jaxpar.trane"),
        ("\n    python -m jaxpar.train \\\n        --sets run.name=a", "jaxpar.train --sets"),
        ("`train --confg X`", "jaxpar.train --confg"),
        ("`launch/local.py --proceses 2 -- true`", "launch/local.py --proceses"),
        ("    A=1 make setup tests ARGS=x  # y", "make tests"),
        ("`python -m jaxpar.train --config configs/smal.yaml`", "configs/smal.yaml"),
        # Keys of the configuration.
        ("`--set modell.layers=8`", "modell"),
        ("`--set parallel.zero=4`", "parallel.zero"),
        ("`parallel.zerro`", "parallel.zerro"),
        ('```python\nTrainer(overrides=["run.nam=a"])\n```', "run.nam"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(text: str, part: str):
    [sentence] = found_in(text)
    assert re.match(r"docs/page.md:\d+: ", sentence) and part in sentence


def test_cells_of_a_notebook_are_read():
    markdown = {"cell_type": "markdown", "source": ["a\n", "`gone/c.py`"]}
    code = {"cell_type": "code", "source": ["x\n", "from jaxpar.mesh import gone"]}
    found = found_in(json.dumps({"cells": [markdown, code]}), "docs/notebooks/a.ipynb")
    assert [sentence.split(": ")[1] for sentence in found] == ["cell 1, line 1", "cell 2, line 1"]


def test_flags_are_those_of_the_command_that_is_given():
    page = "`python -m jaxpar.plan --tokens 1` `python -m jaxpar.plan budget --tokens 1` `jaxpar.schedule --name gpipe`"
    [sentence] = problems(read_page("README.md", page), REPOSITORY)
    assert "jaxpar.plan --tokens" in sentence


def test_the_page_of_commands_is_what_their_parsers_state():
    assert REPOSITORY.read("docs/commands.md") == commands_page(), (
        "stale: run `python -m tools.commands > docs/commands.md`"
    )


def test_the_readme_states_the_number_of_families():
    assert f"| {len(FAMILIES)} families, both ways |" in (ROOT / "README.md").read_text()

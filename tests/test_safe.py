"""Nothing that is read can run code, or is markup: no pickle, no YAML of objects, no evaluated text, no shell."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("jaxpar", "pallas_kernels", "launch", "benchmarks")

UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
UNSAFE_CALLS = {
    "eval", "exec", "os.system", "os.popen", "yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load",
    "yaml.unsafe_load_all", "yaml.full_load_all", "torch.load", "np.fromregex",
}  # fmt: skip


def findings(source: str) -> Iterator[str]:
    """Line and name of everything in a module that could run what it reads."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names if alias.name.split(".")[0] in UNSAFE_MODULES]
        elif isinstance(node, ast.ImportFrom):
            found = [node.module] if node.module and node.module.split(".")[0] in UNSAFE_MODULES else []
        elif isinstance(node, ast.Call):
            found = _unsafe_call(node)
        else:
            continue
        yield from (f"{node.lineno}: {name}" for name in found)


def _unsafe_call(call: ast.Call) -> list[str]:
    name = ast.unparse(call.func)
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    if name in UNSAFE_CALLS:
        return [name]
    if name in ("np.load", "numpy.load", "jnp.load") and given.get("allow_pickle") != "False":
        return [f"{name} without allow_pickle=False"]
    if given.get("allow_pickle") == "True":
        return [f"{name} with allow_pickle"]
    if given.get("shell", "False") != "False":
        return [f"{name} with a shell"]
    return []


def test_the_code_has_nothing_that_runs_what_it_reads():
    modules = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(modules) > 150
    found = [f"{path.relative_to(ROOT)}:{what}" for path in modules for what in findings(path.read_text())]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "import numpy as np; np.load('x')",
        "np.load('x', allow_pickle=True)",
        "yaml.load(text, Loader)",
        "eval(text)",
        "subprocess.run(command, shell=True)",
    ],
)
def test_what_must_not_be_there_would_be_found(line: str):
    assert len(list(findings(line))) == 1


def test_yaml_is_made_of_plain_values_only():
    """The loader is PyYAML's safe one, with fewer abilities."""
    import yaml

    from jaxpar.config.reading.yaml_text import _Loader

    assert issubclass(_Loader, yaml.SafeLoader) and not issubclass(_Loader, yaml.UnsafeLoader)


def test_no_text_on_a_screen_is_markup():
    """Names and paths come from users and files: `[/x]` in one would end a command in a traceback."""
    found = [
        f"{file}:{node.lineno}"
        for file in (ROOT / "jaxpar").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Console", "TextColumn")
        if not any(keyword.arg == "markup" and ast.unparse(keyword.value) == "False" for keyword in node.keywords)
    ]
    assert not found

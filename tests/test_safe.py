"""Nothing that is read can run code, or is markup: no pickle, no YAML of objects, no evaluated text, no shell."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("jaxpar", "pallas_kernels", "launch", "benchmarks")


def test_arrays_are_read_without_pickles():
    """ruff's rules refuse pickles, evaluated text and shells (pyproject.toml); of arrays it knows nothing."""
    found = []
    for file in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call):
                given = [ast.unparse(one.value) for one in call.keywords if one.arg == "allow_pickle"]
                reads = ast.unparse(call.func) in ("np.load", "numpy.load", "jnp.load", "np.fromregex", "torch.load")
                found += [f"{file}:{call.lineno}"] if given != ["False"] and (given or reads) else []
    assert not found


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

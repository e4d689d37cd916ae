"""A record of a kernel is of every file that decides what the kernel computes."""

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from pallas_kernels.verified import ROOT, SOURCES, files

NOT_OF_A_KERNEL = {
    "api.py": "checks what an operation is called with, and calls what was chosen",
    "choice.py": "which implementation runs",
    "comparison.py": "compares with plain XLA, and computes nothing that is used",
    "reference.py": "the plain form, beside which a kernel is checked",
    "registry.py": "which implementation runs",
    "request.py": "what a choice depends on",
    "toolchain.py": "the versions, which a record has besides",
    "verified.py": "the records",
    "work.py": "names of scopes, which whoever counts FLOPs reads",
}
"""Names of files that kernels import and a record does not depend on, with the reason."""


def imported(file: Path) -> Iterator[Path]:
    """The files of pallas_kernels that a file imports."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            assert not any(name.name.startswith(ROOT.name) for name in node.names), f"{file}: import by from"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == ROOT.name:
            for name in node.names:
                found = _file(f"{node.module}.{name.name}") or _file(str(node.module))
                assert found is not None, f"{file} imports {node.module}"
                yield found


def _file(module: str) -> Path | None:
    place = ROOT.parent / module.replace(".", "/")
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)


def reached(kernel: str) -> set[str]:
    """Files that the kernel's own import, and what those import in turn."""
    found, waiting = set(), files(SOURCES[kernel][:1])
    while waiting:
        file = waiting.pop()
        if file in found or file.name in NOT_OF_A_KERNEL:
            continue
        found.add(file)
        waiting += imported(file)
    return {str(file.relative_to(ROOT)) for file in found}


@pytest.mark.parametrize("kernel", SOURCES)
def test_a_record_is_of_all_that_a_kernel_imports(kernel: str) -> None:
    sources = {str(file.relative_to(ROOT)) for file in files(SOURCES[kernel])}
    assert reached(kernel) <= sources, f"pallas_kernels.verified.SOURCES[{kernel!r}] lacks these"


def test_what_a_record_does_not_depend_on_exists() -> None:
    assert {file.name for file in ROOT.rglob("*.py")} >= {*NOT_OF_A_KERNEL}
    assert "device.py" in reached("attention/mosaic"), "imports are followed"


def test_what_has_sources_for_a_record_waits_for_one() -> None:
    """All but cuDNN, whose record is of a speed; `test_choice` has what waiting means."""
    waiting = set()
    for operation in {kernel.split("/")[0] for kernel in SOURCES}:
        module = {"grouped_tiled_matmul": "tiled_matmul"}.get(operation, operation)  # whose kinds have each a record
        registry = import_module(f"pallas_kernels.{module}.registry").REGISTRY
        waiting |= {f"{operation}/{one.name}" for one in registry.entries if one.recorded}
    assert waiting == {*SOURCES} - {"attention/cudnn"}

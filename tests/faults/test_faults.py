"""Each seeded fault turns its tests red: a suite that cannot fail proves nothing."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.faults.fault import ROOT, Fault
from tests.faults.faults import FAULTS
from tests.processes import run_python
from tests.selection import Selection

ASSERTION = r"(assert |AssertionError|Failed: DID NOT RAISE)"


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """pytest in `folder`, in a process of its own that knows nothing of the session around it."""
    plugins = ("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "tests.faults.origin")
    command = ("-m", "pytest", *plugins, "-q", "--tb=short", *arguments)
    return run_python(*command, cwd=folder, without=("PYTEST_",), PYTHONPATH=str(folder), COLUMNS="1000")


def copy_with(fault: Fault, folder: Path) -> None:
    """The code and its tests in `folder`, with the fault in them.

    What Python compiled is copied too, and counts for files that are as old and as long as when it was compiled.
    """
    for name in ("benchmarks", "jaxpar", "pallas_kernels", "tests"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "pyproject.toml", folder)
    text = (folder / fault.file).read_text()
    assert text.count(fault.old) == 1, f"{fault.file} has {text.count(fault.old)} times: {fault.old}"
    faulty = folder / fault.file
    faulty.write_text(text.replace(fault.old, fault.new))
    for compiled in (faulty.parent / "__pycache__").glob(f"{faulty.stem}.*"):
        compiled.unlink()


@pytest.mark.matrix(ci=4, always=True)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", [pytest.param(fault, id=fault.name) for fault in FAULTS])
def test_a_seeded_fault_turns_its_tests_red(fault: Fault, tmp_path: Path):
    copy = tmp_path / "copy"
    copy_with(fault, copy)
    done = run_pytest(copy, f"--basetemp={tmp_path / 'temporary'}", *fault.caught_by)
    for package in ("jaxpar", "pallas_kernels"):
        assert f"tested: {copy / package / '__init__.py'}" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 1, done.stdout + done.stderr
    # An error while collecting or setting up proves nothing: the summary has to count failures and nothing else.
    assert re.search(rf"^{len(fault.caught_by)} failed(, \d+ warnings?)? in ", done.stdout, re.MULTILINE), done.stdout
    reason = ASSERTION if fault.found == "numbers" else ""
    failures = re.findall(r"^FAILED (\S.*?) - (.*)$", done.stdout, re.MULTILINE)
    assert len(failures) == len(fault.caught_by), done.stdout
    for name, why in failures:
        assert re.match(reason, why), f"{name} failed for another reason: {why}"


def test_every_fault_is_one_replacement_caught_by_tests_of_the_suite(request: pytest.FixtureRequest):
    """So that the tests that catch a fault are green without it: they run, and pass, with all others."""
    for fault in FAULTS:
        assert (ROOT / fault.file).read_text().count(fault.old) == 1, f"{fault.name}: {fault.old}"
    selection: Selection = request.config.pluginmanager.get_plugin("selection")
    # Where the whole suite runs, all have been found already.
    names = {name for fault in FAULTS for name in fault.caught_by} - selection.collected
    if names:
        done = run_pytest(ROOT, "--collect-only", *names)
        assert done.returncode == 0, done.stdout + done.stderr
        assert names == {line for line in done.stdout.splitlines() if "::" in line}

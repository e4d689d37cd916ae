"""launch/install_browser.sh installs Chromium once, as root, where apt-get is; everywhere else it stays quiet."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.setup.programs import ROOT, program, run

APT = 'echo "$*" >>"$CALLS"; echo "a talking apt"; [ "$*" = "${APT_FAILS:-}" ] && exit 100; exit 0'
INSTALL = "-o DPkg::Lock::Timeout=300 install --yes --no-install-recommends chromium fonts-dejavu-core"


class Machine:
    """A machine that has the programs of `folder`, a few tools, and nothing else on PATH."""

    def __init__(self, folder: Path, user: int) -> None:
        self.folder = folder
        for tool in ("mktemp", "rm", "tail"):
            found = shutil.which(tool)
            assert found is not None
            program(folder / tool, f'exec {found} "$@"')
        program(folder / "id", f"echo {user}")
        program(folder / "apt-get", APT)

    def install(self, **environment: str) -> subprocess.CompletedProcess[str]:
        calls = str(self.folder / "calls")
        return run(ROOT / "launch/install_browser.sh", PATH=str(self.folder), CALLS=calls, **environment)

    def calls(self) -> list[str]:
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []


def test_root_gets_it_and_apt_is_kept_off_the_screen(tmp_path: Path) -> None:
    machine = Machine(tmp_path, user=0)
    done = machine.install()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "Installing Chromium for the tests of HTML pages: half a minute, once\n"
    assert machine.calls() == ["update", INSTALL]


@pytest.mark.parametrize("why", ["chromium", "google-chrome", "elsewhere/browser", "no root", "no apt-get"])
def test_where_a_browser_is_there_or_named_and_without_root_or_apt_nothing_happens(tmp_path: Path, why: str) -> None:
    machine, named = Machine(tmp_path, user=1000 if why == "no root" else 0), {}
    if why == "no apt-get":
        (tmp_path / "apt-get").unlink()
    elif why != "no root":
        named = {"CHROMIUM": str(program(tmp_path / why, "exit 0"))} if "/" in why else {}
        program(tmp_path / why, "exit 0")
    done = machine.install(**named)
    assert (done.returncode, done.stdout, done.stderr, machine.calls()) == (0, "", "", [])


@pytest.mark.parametrize("failing", ["update", INSTALL])
def test_a_failure_is_shown_and_does_not_stop_the_other_tests(tmp_path: Path, failing: str) -> None:
    done = Machine(tmp_path, user=0).install(APT_FAILS=failing)
    assert done.returncode == 0 and "a talking apt" in done.stderr
    assert "Chromium could not be installed" in done.stderr

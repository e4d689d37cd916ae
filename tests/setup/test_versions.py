"""The versions that an installation gets are those that are tested, and what CI runs depends on the commit alone, but
for the kernels under the newest jax (`tests/pallas_kernels/test_newest_jax.py`)."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def constraints() -> dict[str, str]:
    """Version of each package in constraints.txt."""
    lines = [line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    return dict(line.split("==") for line in lines if line)


def test_gpu_programs_are_compiled_with_the_tested_minor_version_of_jax():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    major, minor, patch = map(int, constraints()["jax"].split("."))
    needed = {name for name in extras["compile"] if name.startswith("jax")}
    assert needed == {
        f"{name}>={major}.{minor}.{patch},<{major}.{minor + 1}"
        for name in ("jax", "jax-cuda12-plugin", "jax-cuda12-pjrt")
    }
    assert constraints()["jax-cuda13-plugin"] == constraints()["jax-cuda13-pjrt"] == constraints()["jax"]
    assert constraints()["jax-cuda12-plugin"] == constraints()["jax-cuda12-pjrt"] == constraints()["jax"]


def test_ci_does_not_ask_for_advisories_which_change_from_day_to_day():
    steps = re.search(r"for name in (.+); do", (ROOT / ".ci" / "run").read_text())
    makefile = (ROOT / "Makefile").read_text()
    targets = {name: needs.split() for name, needs in re.findall(r"^([\w-]+): *([\w -]*)$", makefile, re.MULTILINE)}
    assert steps is not None and "audit" in targets
    ran = set(steps[1].split())
    assert ran <= targets.keys() and "audit" not in ran | {need for name in ran for need in targets[name]}

"""What there is of the host's memory, and what XLA pins of it."""

from pathlib import Path

import pytest

from jaxpar.hardware import host
from jaxpar.hardware.host import PINNED_VARIABLE, PREALLOCATED_VARIABLE, group_limits, host_memory, pinned_limit

GIB = 2**30


def test_a_process_pins_64_gib_by_default():
    assert pinned_limit({}) == 64 * GIB
    assert pinned_limit({PREALLOCATED_VARIABLE: "false"}) == 64 * GIB
    assert pinned_limit({PREALLOCATED_VARIABLE: "True"}) == 16 * GIB
    assert pinned_limit({PINNED_VARIABLE: "900"}) == pinned_limit({PINNED_VARIABLE: " 900 "}) == 900 * GIB


def limits(tmp_path: Path, own: str, files: dict[str, str]) -> list[int]:
    """What the groups in `files` allow a process whose /proc/self/cgroup is `own`."""
    (tmp_path / "cgroup").write_text(own)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return [limit for limit in group_limits(tmp_path / "cgroup", tmp_path / "fs") if limit < host.NO_LIMIT]


def test_a_container_has_what_its_groups_allow(tmp_path: Path):
    files = {"fs/job/memory.max": "137438953472\n", "fs/job/task/memory.max": "max\n", "fs/other/memory.max": "1\n"}
    assert limits(tmp_path, "0::/job/task\n", files) == [128 * GIB]


def test_groups_of_the_first_version_are_asked_too(tmp_path: Path):
    """The path is the host's, and what is mounted is the container's."""
    own = "4:cpu,cpuacct:/x\n3:memory:/docker/abc\n0::/\n"
    assert limits(tmp_path, own, {"fs/memory/memory.limit_in_bytes": "1073741824\n"}) == [GIB]


def test_a_machine_without_groups_has_all_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert list(group_limits(tmp_path / "cgroup", tmp_path)) == []
    whole = host_memory()
    monkeypatch.setattr(host, "group_limits", lambda *_: iter([whole // 2, 2 * whole]))
    assert host_memory() == whole // 2

"""The loaded NCCL is read from the memory map, and versions with known faults are named."""

from pathlib import Path

import pytest

from jaxpar.hardware.nccl import MAPS, Version, faults, loaded_version

MAPPED = """\
55d0c0a00000-55d0c0a01000 r--p 00000000 08:01 131 /usr/bin/python3.12
7f1c00000000-7f1c10000000 r-xp 00000000 08:01 977 {path}
7ffd0d5e0000-7ffd0d601000 rw-p 00000000 00:00 0 [stack]
"""


@pytest.mark.parametrize(
    ("path", "code", "version"),
    [
        ("/env/lib/nvidia/nccl/lib/libnccl.so.2", 23007, (2, 30, 7)),
        ("/opt/nccl/libnccl.so.2.29.3", 22903, (2, 29, 3)),
        ("/env/lib/libnccl_net.so", 23007, None),
        ("/env/lib/libcudart.so.12", 23007, None),
    ],
)
def test_the_loaded_library_is_asked_for_its_version(tmp_path: Path, path: str, code: int, version: Version | None):
    maps = tmp_path / "maps"
    maps.write_text(MAPPED.format(path=path))
    asked: list[str] = []
    assert loaded_version(maps, lambda library: asked.append(library) or code) == version
    assert asked == ([path] if version else [])


def test_a_process_without_nccl_has_no_version(tmp_path: Path):
    assert loaded_version(MAPS) is None
    assert loaded_version(tmp_path / "maps") is None, "not Linux"


@pytest.mark.parametrize(
    ("version", "machine", "pipelined", "named"),
    [
        ((2, 29, 2), "aarch64", False, "2.29.3"),
        ((2, 29, 2), "x86_64", True, None),
        ((2, 29, 3), "aarch64", True, None),
        ((2, 30, 7), "x86_64", True, "2.31.2"),
        ((2, 30, 7), "x86_64", False, None),
        ((2, 31, 2), "aarch64", True, None),
        (None, "aarch64", True, None),
    ],
)
def test_a_version_with_a_known_fault_is_named(
    version: Version | None, machine: str, pipelined: bool, named: str | None
):
    sentences = faults(version, machine, pipelined=pipelined)
    assert len(sentences) == (named is not None)
    for sentence in sentences:
        assert version is not None and ".".join(map(str, version)) in sentence and str(named) in sentence

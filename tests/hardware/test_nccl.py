"""The loaded NCCL is read from the memory map, and versions with known faults are named."""

from importlib import metadata
from pathlib import Path

import pytest

from jaxpar.hardware.nccl import MAGIC, MAPS, Loaded, Version, faults, headers_of, loaded

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
    found = loaded(maps, lambda library: asked.append(library) or code)
    assert found == (Loaded(version, None) if version else None)
    assert asked == ([path] if version else [])


def test_a_process_without_nccl_has_no_version(tmp_path: Path):
    assert loaded(MAPS) is None
    assert loaded(tmp_path / "maps") is None, "not Linux"


def test_headers_are_those_in_the_plugin_that_is_loaded(tmp_path: Path):
    plugin = tmp_path / "xla_cuda_plugin.so"
    plugin.write_bytes(b"\x7fELF" + MAGIC + bytes(12) + MAGIC + (22907).to_bytes(4, "little") + bytes(9))
    maps = tmp_path / "maps"
    maps.write_text(MAPPED.format(path="/env/libnccl.so.2") + MAPPED.format(path=plugin))
    assert loaded(maps, lambda _: 23007) == Loaded((2, 30, 7), (2, 29, 7))
    [sentence] = faults(loaded(maps, lambda _: 23007), "x86_64", pipelined=False)
    assert "marin#8870" in sentence and "NCCL 2.30.7" in sentence and "headers of 2.30.0 or newer" in sentence
    assert "than the headers of JAX's plugin (2.29.7), and" in sentence
    [sentence] = faults(Loaded((3, 1, 0), (2, 28, 3)), "x86_64", pipelined=False)
    assert "NCCL 3.1.0 " in sentence and "(2.28.3)" in sentence
    assert str(Loaded((2, 31, 2), (2, 30, 7))) == "2.31.2 (headers of JAX's plugin: 2.30.7)"
    assert str(Loaded((2, 31, 2), None)) == "2.31.2 (headers of JAX's plugin: not known)"
    assert not faults(Loaded((2, 30, 7), (2, 30, 7)), "x86_64", pipelined=False)
    assert not faults(Loaded((2, 29, 7), (2, 29, 7)), "x86_64", pipelined=False)
    assert not faults(Loaded((2, 31, 2), None), "x86_64", pipelined=False)
    plugin.write_bytes(b"\x7fELF" + bytes(100))
    assert headers_of(plugin) is None


def test_jax_s_plugin_tells_its_headers():
    plugin = Path(metadata.distribution("jax-cuda12-pjrt").locate_file("jax_plugins/xla_cuda12/xla_cuda_plugin.so"))
    assert headers_of(plugin) == (2, 30, 7)


@pytest.mark.parametrize(
    ("version", "machine", "pipelined", "named"),
    [
        ((2, 29, 2), "aarch64", False, "2.29.3"), ((2, 29, 2), "x86_64", True, None),
        ((2, 29, 3), "aarch64", True, None), ((2, 30, 7), "x86_64", True, "2.31.2"),
        ((2, 30, 7), "x86_64", False, None), ((2, 31, 2), "aarch64", True, None), (None, "aarch64", True, None),
    ],
)  # fmt: skip
def test_a_version_with_a_known_fault_is_named(version, machine, pipelined, named):
    sentences = faults(version and Loaded(version, version), machine, pipelined=pipelined)
    assert len(sentences) == (named is not None)
    for sentence in sentences:
        assert version is not None and ".".join(map(str, version)) in sentence and str(named) in sentence

"""Parts of arrays in files: a region is read whatever the parts are, and damage is noticed."""

from pathlib import Path

import numpy as np
import pytest

from jaxpar.checkpoint.errors import Damage
from jaxpar.training.island_jobs.tensor_parts import Part, TensorParts, write_parts

ARRAY = np.arange(4 * 6 * 5, dtype=np.float32).reshape(4, 6, 5)


def part(first: tuple[int, ...], last: tuple[int, ...], name: str = "mlp/up") -> Part:
    return Part(name, first, tuple(stop - start for start, stop in zip(first, last, strict=True)))


def numbers(one: Part) -> np.ndarray:
    return ARRAY[tuple(slice(start, stop) for start, stop in zip(one.starts, one.stops, strict=True))]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """The array in four parts in two files, and a scalar."""
    parts = [
        part((0, 0, 0), (4, 2, 5)),
        part((0, 2, 0), (3, 6, 5)),
        part((3, 2, 0), (4, 6, 2)),
        part((3, 2, 2), (4, 6, 5)),
    ]
    scalar = Part("scale", (), ())
    write_parts(tmp_path / "0", {one: numbers(one) for one in parts[:2]})
    write_parts(tmp_path / "1", {one: numbers(one) for one in parts[2:]} | {scalar: np.array(3, np.float32)})
    return [tmp_path / "0", tmp_path / "1"]


def test_any_region_is_read(files: list[Path]):
    tensors = TensorParts(files)
    for wanted in (part((0, 0, 0), (4, 6, 5)), part((2, 1, 1), (4, 5, 4)), part((3, 5, 4), (4, 6, 5))):
        assert np.array_equal(tensors.read(wanted), numbers(wanted))
    assert tensors.read(Part("scale", (), ())) == 3


def test_a_name_of_a_part_is_read_back():
    for one in (part((0, 2, 0), (3, 6, 5)), Part("scale", (), ()), Part("a@b", (1,), (2,))):
        assert Part.parse(str(one)) == one


def test_what_is_missing_twice_or_no_tensor_is_damage(files: list[Path], tmp_path: Path):
    for paths in (files[:1], [*files, files[0]]):
        with pytest.raises(Damage, match="each number of mlp/up once"):
            TensorParts(paths).read(part((0, 0, 0), (4, 6, 5)))
    with pytest.raises(Damage, match="each number of other once"):
        TensorParts(files).read(part((0,), (2,), "other"))
    (tmp_path / "1").write_bytes(b"no tensors")
    for paths in ([tmp_path / "1"], [tmp_path / "gone"]):
        with pytest.raises(Damage, match="missing or no safetensors file"):
            TensorParts(paths)

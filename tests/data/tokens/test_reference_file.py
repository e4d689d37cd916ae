"""The log-probabilities of a reference model, in a file that anyone may have changed."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from jaxpar.data.tokens.digests import digest
from jaxpar.data.tokens.reference_file import ReferenceFile
from tests.sentences import refused

VALUES = np.array([-1.5, np.nan, -3.0], np.float32)


@pytest.fixture
def file(tmp_path: Path) -> ReferenceFile:
    """The file of three documents."""
    made = ReferenceFile(tmp_path, {"model": "a"}, 3)
    made.path.write_bytes(made.encoded(VALUES))
    return made


def test_what_is_written_is_read_by_numpy_too(file: ReferenceFile):
    np.testing.assert_array_equal(np.load(file.path), VALUES)
    found = file.read()
    assert found is not None and found.flags.writeable
    np.testing.assert_array_equal(found, VALUES)
    file.path.unlink()
    assert file.read() is None


def sealed(values: np.ndarray) -> bytes:
    content = BytesIO()
    np.save(content, values)
    return content.getvalue() + bytes.fromhex(digest(content.getvalue()))


@pytest.mark.parametrize(
    "content",
    [b"", b"x" * 10, sealed(VALUES)[:-1], sealed(VALUES[:2]), sealed(VALUES.astype(np.float16)), sealed(VALUES[None])],
    ids=["empty", "short", "cut", "fewer", "another type", "another shape"],
)
def test_a_damaged_file_is_refused(file: ReferenceFile, content: bytes):
    file.path.write_bytes(content)
    with refused(str(file.path), "damaged"):
        file.read()


def test_a_header_that_promises_more_than_the_file_has_is_damage(file: ReferenceFile):
    content = sealed(VALUES)[:-32].replace(b"(3,), }", b"(9999999999999,), }").replace(b" " * 12, b"", 1)
    file.path.write_bytes(content + bytes.fromhex(digest(content)))
    with refused(str(file.path), "damaged"):
        file.read()


def test_a_file_that_is_too_long_is_not_read_to_its_end(file: ReferenceFile):
    with file.path.open("ab") as opened:
        opened.truncate(2**40)
    with refused(str(file.path), "more than"):
        file.read()

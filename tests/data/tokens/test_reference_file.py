"""The log-probabilities of a reference model, in a file that anyone may have changed."""

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


def promising_more() -> bytes:
    """A header of more values than the file has, under a digest that fits."""
    content = sealed(VALUES)[:-32].replace(b"(3,), }", b"(9999999999999,), }").replace(b" " * 12, b"", 1)
    return content + bytes.fromhex(digest(content))


DAMAGED = {
    "empty": b"", "short": b"x" * 10, "cut": sealed(VALUES)[:-1], "fewer": sealed(VALUES[:2]),
    "another type": sealed(VALUES.astype(np.float16)), "another shape": sealed(VALUES[None]),
    "a header of more": promising_more(),
}  # fmt: skip


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_is_refused(file: ReferenceFile, content: bytes):
    file.path.write_bytes(content)
    with refused(str(file.path), "damaged"):
        file.read()


def test_a_file_that_is_too_long_is_not_read_to_its_end(file: ReferenceFile):
    with file.path.open("ab") as opened:
        opened.truncate(2**40)
    with refused(str(file.path), "more than"):
        file.read()

"""Token files are read as they are, and each way in which one can be wrong has its sentence."""

import io
import os
import struct

import numpy as np
import pytest

from jaxpar.config.schema import DataConfig
from jaxpar.data.sources import open_data
from jaxpar.data.tokens.token_file import read_token_file
from tests.sentences import refused


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tokens.npy"


def save(path, values, dtype=np.uint16):
    np.save(path, np.array(values, dtype))
    return str(path)


def read(path, separator=None, vocab=None, **more):
    return read_token_file(str(path), key="data.path", separator=separator, vocab=vocab, **more)


@pytest.mark.parametrize("dtype", ["u1", "<u2", ">u2", "u4", "u8"])
def test_documents_end_with_the_separator(path, dtype):
    stream, largest = read(save(path, [5, 9, 9, 1, 2, 9, 3], dtype), separator=9, chunk_tokens=3)
    assert stream.tokens[:].tolist() == [5, 9, 9, 1, 2, 9, 3] and stream.starts[:].tolist() == [0, 2, 3, 6]
    assert largest == 9


def test_a_separator_at_the_end_of_the_file_starts_no_document_and_without_one_there_is_one(path):
    assert read(save(path, [5, 9, 1, 9]), separator=9)[0].starts[:].tolist() == [0, 2]
    assert read(save(path, [5, 9, 1]))[0].starts[:].tolist() == [0]


def test_tokens_are_read_when_they_are_used(path):
    tokens = read(save(path, range(100)))[0].tokens
    assert tokens[np.array([7, 8, 3, 99, 0])].tolist() == [7, 8, 3, 99, 0]
    assert [len(tokens[np.array([], np.int64)]), len(tokens[5:5]), len(tokens[9:2])] == [0, 0, 0]
    assert tokens[-2:].tolist() == [98, 99]


def test_a_file_that_is_truncated_while_it_is_in_use_is_one_sentence(path):
    """The bytes that a memory map no longer has would end this process with SIGBUS."""
    tokens = read(save(path, range(20_000)))[0].tokens
    os.truncate(path, 5000)
    for index in (slice(None), np.array([3, 19_999])):
        with refused("/tokens.npy", "was truncated", "has 5000 bytes"):
            tokens[index]


def test_tokens_must_be_in_the_vocabulary(path):
    save(path, [3, 299])
    assert read(path, vocab=300)[1] == 299
    with refused("data.path=", "token id 299", "model.vocab=299"):
        read(path, vocab=299)


def test_tokens_must_fit_into_int32(path):
    with refused("token id 2147483648", "2**31"):
        read(save(path, [2**31], np.uint32))


def written(values: object) -> bytes:
    """A file of NumPy's."""
    file = io.BytesIO()
    np.save(file, np.array(values) if not isinstance(values, np.ndarray) else values, allow_pickle=True)
    return file.getvalue()


HUNDRED = written(np.arange(100, dtype=np.uint16))
HEADERS = [b"\0" * 60, b"{", b"(" * 5000, b"-" * 9000 + b"1", b"{[]: 1}", b"{1: 2, 'a': 3}"]
"""Headers that NumPy refuses with errors of several kinds, or reads."""
HEADERS += [b"{'descr': '<u2', 'fortran_order': False, 'shape': (-5,)}"]
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 4976\n" % (b"0" * 64)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (written(np.array([], np.uint16)), ("holds no tokens",)),
        (written(np.array([1, 2], np.int32)), ("int32", "expected", "unsigned")),
        (written(np.array([1, 2], np.float32)), ("float32", "expected", "unsigned")),
        (written([True]), ("holds bool",)),
        (written(np.array([[1, 2], [3, 4]], np.uint16)), ("shape (2, 2)", "expected", "one dimension")),
        (written(np.array(3, np.uint16)), ("shape ()",)),
        (written([None]), ("holds object",)),
        *((HUNDRED[:kept], ("no readable",)) for kept in (1, 7, 60)),
        *((HUNDRED[:kept], ("is truncated: its header says 100 tokens",)) for kept in (128, 131)),
        *((b"\x93NUMPY\x01\x00" + struct.pack("<H", len(one)) + one + bytes(64), ("header",)) for one in HEADERS),
        (b"", ("0 bytes", ".npy file with one dimension")),
        (b"once upon a time" * 20, ("header", ".npy file with one dimension")),
        (b"PK\x03\x04" + bytes(300), ("header", ".npy file with one dimension")),  # as `np.savez` writes it
        (POINTER, ("Git LFS pointer",)),
    ],
    ids=range(23),
)
def test_a_file_without_an_array_of_tokens_is_a_users_error(path, content, parts):
    path.write_bytes(content)
    with refused(f"data.path={str(path)!r}", *parts):
        read(path)


def test_a_path_without_a_file_is_a_users_error_that_names_a_near_miss(path):
    save(path, [1, 2])
    with refused("token.npy' does not exist", "did you mean", "/tokens.npy'"):
        read(path.with_name("token.npy"))
    with refused("does not exist", ".npy file", "python -m jaxpar.prepare"):
        read(path.parent / "nowhere" / "x.npy")
    with refused(f"data.path={str(path.parent)!r}", "not a file", ".npy file with one dimension"):
        read(path.parent)
    with refused("cannot be read", "File name too long"):
        read(path.parent / ("x" * 4000))


def config(path, **changes) -> DataConfig:
    return DataConfig(source="tokens", path=str(path), sequence_length=4, **changes)


def test_opened_token_files_have_the_vocabulary_of_both_files(path, tmp_path):
    save(path, [5, 9, 1, 9, 2, 2])
    other = save(tmp_path / "validation.npy", [5, 9, 11, 9])
    data = open_data(config(path, validation_path=other, separator=9), vocab=None, seed=0)
    assert (data.vocab, data.separator, data.decode, data.encode_start) == (12, 9, None, None)
    assert data.validation is not None
    assert data.description.endswith("6 tokens in 3 documents to train on, 4 in 2 for validation")
    assert open_data(config(path, separator=9), vocab=64, seed=0).vocab == 64
    assert open_data(config(path), vocab=None, seed=0).validation is None


def test_an_unset_path_and_a_separator_that_never_occurs_are_users_errors(path):
    with refused("data.path", "not set", "data.source=tokens", "token folder or a .npy file"):
        open_data(DataConfig(source="tokens"), vocab=None, seed=0)
    save(path, [1, 2, 3, 4])
    with refused("data.separator=7", "does not occur"):
        open_data(config(path, separator=7), vocab=None, seed=0)


def test_an_error_in_the_validation_file_names_its_key(path, tmp_path):
    save(path, [1, 2, 3, 4])
    with refused("data.validation_path=", "gone.npy", "does not exist"):
        open_data(config(path, validation_path=str(tmp_path / "gone.npy")), vocab=None, seed=0)

"""Starts of documents in files are the array that laying the shards end to end gives, and take no memory for each."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpar.data.packing import PackedRows
from jaxpar.data.stream import TokenStream
from jaxpar.data.tokens import document_starts
from jaxpar.data.tokens.digests import digest
from jaxpar.data.tokens.document_starts import DocumentStarts, ShardStarts
from jaxpar.data.tokens.file_array import FileArray
from jaxpar.data.tokens.token_folder import npy_header
from tests.sentences import refused

INT64 = np.dtype("<i8")


def shard(path: Path, starts: np.ndarray, tokens: int, *, count: int | None = None) -> ShardStarts:
    """The shard of `tokens` tokens whose documents are stated to start there; the header names `count` of them."""
    header = npy_header(INT64, count or len(starts))
    content = header + starts.astype(INT64).tobytes()
    path.unlink(missing_ok=True)  # Another shard may have it open.
    path.write_bytes(content)
    in_file = FileArray(path, offset=len(header), count=len(starts), dtype=INT64)
    return ShardStarts(in_file, header=npy_header(INT64, len(starts)), digest=digest(content), tokens=tokens)


@settings(max_examples=80, deadline=None)
@given(data=st.data(), spacing=st.integers(1, 4), lengths=st.lists(st.lists(st.integers(1, 5), min_size=1), min_size=1))
def test_slices_and_places_are_those_of_one_array(tmp_path_factory, data, spacing, lengths):
    folder = tmp_path_factory.getbasetemp()
    every = np.cumsum([0, *(length for shard in lengths for length in shard)])
    whole, total = every[:-1], int(every[-1])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(document_starts, "SPACING", spacing)
        patched.setattr(document_starts, "_READ", 2 * spacing)
        shards = [shard(folder / "a.npy", np.cumsum([0, *own[:-1]]), sum(own)) for own in lengths]
        starts = DocumentStarts(shards[:1]).concatenate(DocumentStarts(shards[1:])) if shards[1:] else None
        starts = starts or DocumentStarts(shards)
        assert len(starts) == len(whole)
        first, last = (data.draw(st.none() | st.integers(-12, 60)) for _ in range(2))
        np.testing.assert_array_equal(starts[first:last], whole[first:last])
        places = data.draw(st.lists(st.integers(0, total + 1)))
        np.testing.assert_array_equal(starts.searchsorted(places, "right"), whole.searchsorted(places, "right"))
        np.testing.assert_array_equal(starts.searchsorted(places), whole.searchsorted(places))
        assert int(starts.searchsorted(total)) == len(whole)


def test_memory_does_not_grow_with_the_documents_and_rows_stay_the_same(tmp_path: Path):
    """Two shards of a million documents: 8 bytes for each would be 16 MB."""
    count, each = 10**6, 40
    own = np.arange(count) * each
    tokens = np.broadcast_to(np.uint16(7), (2 * count * each,))
    shards = [shard(tmp_path / name, own, count * each) for name in ("a.npy", "b.npy")]
    tracemalloc.start()
    try:
        in_files = PackedRows(
            TokenStream(tokens, DocumentStarts(shards)), sequence_length=2048, packed=True, seed=1, name="x"
        )
        rows = [in_files.row(example) for example in range(0, 40_000, 5_000)]
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2**21 and most < 2**22 < 8 * 2 * count, f"{held} bytes are held, and {most} were"
    in_memory = TokenStream(tokens, np.concatenate([own, own + count * each]))
    for number, found in enumerate(rows):
        wanted = PackedRows(in_memory, sequence_length=2048, packed=True, seed=1).row(5_000 * number)
        for name, values in wanted.items():
            np.testing.assert_array_equal(found[name], values)


def test_damage_is_found_when_a_shard_is_first_used(tmp_path: Path):
    starts = DocumentStarts([shard(tmp_path / name, np.arange(0, 3000, 3), 3000) for name in ("a.npy", "b.npy")])
    with (tmp_path / "b.npy").open("r+b") as file:
        file.seek(4000)
        file.write(b"\x01")
    assert starts[5:8].tolist() == [15, 18, 21] and int(starts.searchsorted(2999, "right")) == 1000
    for used in (lambda: starts[1500:1510], lambda: starts.searchsorted(4500), starts.check):
        with refused("b.npy", "is damaged"):
            used()


@pytest.mark.parametrize(
    ("starts", "count", "expected"),
    [
        ([1, 2, 3], None, "not in order"), ([0, 2, 2], None, "not in order"), ([0, 5, 3], None, "not in order"),
        ([0, 5, 10], None, "not in order"), ([0, 5, 7], 4, "is not a .npy file of 3 numbers"),
    ],
)  # fmt: skip
def test_a_file_of_other_contents_is_refused(tmp_path: Path, starts: list[int], count: int | None, expected: str):
    with refused("a.npy", expected):
        DocumentStarts([shard(tmp_path / "a.npy", np.array(starts), 10, count=count)]).check()

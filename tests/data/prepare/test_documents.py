"""Documents are found alike in every format and compression, whatever the parts; what is broken has its place."""

import glob
import gzip
import json
import os

import pyarrow as arrow
import pyarrow.parquet
import pytest
import zstandard

from jaxpar.data.prepare.input import compression
from jaxpar.data.prepare.input import documents as prepared_documents
from jaxpar.data.prepare.input.documents import documents, location, share_of_rows
from jaxpar.data.prepare.input.files import find_inputs
from jaxpar.data.prepare.input.matching import matches
from jaxpar.data.prepare.input.units import plan_units
from tests.sentences import refused

ZSTD = zstandard.ZstdCompressor(write_checksum=True)
TEXTS = ["first", "second\nwith lines", "", "d'accord \u2028 \U0001f600", "x" * 3000, "last"]


def write(path, texts=TEXTS):
    """The texts in the format and compression of the name."""
    plain = path.with_suffix("") if path.suffix in (".gz", ".zst") else path
    if plain.suffix == ".parquet":
        table = arrow.table({"id": range(len(texts)), "text": texts})
        arrow.parquet.write_table(table, plain, row_group_size=2)
        raw = plain.read_bytes()
        plain.unlink()
    elif plain.suffix == ".arrow":  # as a stream, or where it is compressed as a file
        table = arrow.table({"id": range(len(texts)), "text": texts})
        content = arrow.BufferOutputStream()
        with (arrow.ipc.new_stream if path == plain else arrow.ipc.new_file)(content, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
        raw = content.getvalue().to_pybytes()
    elif plain.suffix == ".txt":
        raw = texts[0].encode()
    else:
        raw = "".join(json.dumps({"id": 1, "text": text}, ensure_ascii=number % 2 == 0) + "\n"
                      for number, text in enumerate(texts)).encode()  # fmt: skip
    packed = {".gz": gzip.compress, ".zst": ZSTD.compress}.get(path.suffix, bytes)(raw)
    path.write_bytes(packed)
    return path


def read(path, format=None, unit_bytes=10**9, key="text"):
    """Everything that the units of a file hold."""
    inputs = find_inputs([str(path)], format, path.parent / "out")
    units = plan_units(inputs, unit_bytes, key)
    return [
        found
        for unit in units
        for part in unit
        for found in documents(inputs[part.input], part.first, part.last, key=key, scratch=path.parent)
    ]


@pytest.mark.parametrize("compression", ["", ".gz", ".zst"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "a.arrow", "a.txt"])
def test_texts_come_back_from_every_format(tmp_path, name, compression):
    path = write(tmp_path / f"{name}{compression}")
    before = sorted(tmp_path.iterdir())
    assert [found.text for found in read(path)] == (TEXTS[:1] if ".txt" in name else TEXTS)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_units_of_any_size_hold_each_document_once_in_order(tmp_path, name):
    path = write(tmp_path / name, TEXTS * 3)
    whole = read(path)
    assert [found.text for found in whole] == TEXTS * 3
    for unit_bytes in (1, 7, 50, 61, 400, 3500, 10000):
        assert read(path, unit_bytes=unit_bytes) == whole, unit_bytes


def test_small_files_share_a_unit(tmp_path):
    for number in range(6):
        (tmp_path / f"{number}.txt").write_text("x" * 30)
    inputs = find_inputs([str(tmp_path / "*.txt")], None, tmp_path / "out")
    assert [[part.input for part in unit] for unit in plan_units(inputs, 70, "text")] == [[0, 1], [2, 3], [4, 5]]


def test_lines_may_be_documents(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\n\ntwo")
    assert [found.text for found in read(tmp_path / "a.txt", format="lines")] == ["one", "", "two"]
    assert [found.text for found in read(tmp_path / "a.txt")] == ["one\r\n\ntwo"]


def test_several_compressed_streams_in_one_file_are_one_text(tmp_path):
    for suffix, compress in ((".gz", gzip.compress), (".zst", ZSTD.compress)):
        path = tmp_path / f"a.txt{suffix}"
        path.write_bytes(compress(b"one ") + compress(b"two"))
        assert [found.text for found in read(path)] == ["one two"]


BROKEN_LINES = {
    "{": "not JSON (Expecting property name enclosed in double quotes, column 2)",
    '"text"': "not a JSON object",
    '{"body": "x", "id": 3}': "no key 'text' (it has 'body', 'id'); --text-key names another one",
    '{"text": 5}': "the value of 'text' is not text",
    '{"text": null}': "the value of 'text' is not text",
    '{"text": ' + "[" * 100_000: "not JSON (too deep or long)",
    '[{"text": "a"}, {"text": "b"}]': "an array, expected a JSON object on each line",
    "[": "an array, expected a JSON object on each line",
    '{"text": ' + "1" * 5000 + "}": "not JSON (too deep or long)",
}


@pytest.mark.parametrize("compression", ["", ".gz"])
def test_a_broken_line_is_reported_by_file_and_line(tmp_path, compression):
    path = tmp_path / f"a.jsonl{compression}"
    lines = ['{"text": "good"}', "", *BROKEN_LINES, '{"text": "good"}']
    raw = "\n".join(lines).encode() + b'\n{"text": "\xff"}\n'
    path.write_bytes(gzip.compress(raw) if compression else raw)
    found = read(path, unit_bytes=30)
    assert [each.text for each in found if not each.broken] == ["good", "good"]
    assert [each.broken for each in found if each.broken] == [*BROKEN_LINES.values(), "not UTF-8 (byte 10 of the line)"]
    [file] = find_inputs([str(path)], None, tmp_path / "out")
    places = [location(file, each.offset) for each in found if each.broken]
    last = 3 + len(BROKEN_LINES)
    assert places == [f"{path}:{line}" for line in [*range(3, last), last + 1]]


def test_a_broken_row_or_file_is_reported(tmp_path):
    table = arrow.table({"text": arrow.array([b"a", None, b"\xff", b"b"], arrow.binary())})
    arrow.parquet.write_table(table, tmp_path / "a.parquet")
    found = read(tmp_path / "a.parquet")
    assert [(each.text, each.broken) for each in found] == [("a", ""), ("", "null"), ("", "not UTF-8"), ("b", "")]
    [file] = find_inputs([str(tmp_path / "a.parquet")], None, tmp_path / "out")
    assert location(file, found[2].offset) == f"{tmp_path / 'a.parquet'}: row 3"
    (tmp_path / "a.txt").write_bytes(b"ab\xff")
    assert [each.broken for each in read(tmp_path / "a.txt")] == ["not UTF-8 (byte 2)"]


@pytest.mark.parametrize(
    "name", ["a.jsonl.gz", "a.jsonl.zst", "a.parquet", "a.parquet.gz", "a.parquet.zst", "a.txt.gz"]
)
@pytest.mark.parametrize("damage", ["cut", "flipped", "other"])
def test_a_damaged_file_is_named(tmp_path, name, damage):
    path = write(tmp_path / name, [f"{number} {number**7}" for number in range(500)])
    raw = bytearray(path.read_bytes())
    if damage == "cut":
        raw = raw[: len(raw) * 2 // 3]
    elif damage == "other":
        raw = bytearray(b"once upon a time " * 50)
    elif name == "a.parquet":
        raw[-6] ^= 0xFF  # The footer.
    else:
        raw[len(raw) // 2] ^= 0x55
    path.write_bytes(raw)
    with refused(str(path)) as caught:
        read(path)
    assert any(why in str(caught.value) for why in ("cannot be read", "cut off"))


def test_a_parquet_without_the_column_has_its_columns_listed(tmp_path):
    path = write(tmp_path / "a.parquet")
    with refused("--text-key 'body'", "a.parquet", "'id', 'text'"):
        read(path, key="body")
    with refused("--text-key 'id'", "a.parquet", "int64", "expected text"):
        read(path, key="id")


def test_text_columns_of_every_kind_are_read(tmp_path):
    for kind in (arrow.string(), arrow.large_string(), arrow.binary(), arrow.dictionary(arrow.int8(), arrow.string())):
        table = arrow.table({"text": arrow.array(["a", "é", "a"], arrow.string()).cast(kind)})
        arrow.parquet.write_table(table, tmp_path / "a.parquet")
        assert [found.text for found in read(tmp_path / "a.parquet")] == ["a", "é", "a"], kind


def test_text_of_a_column_that_is_not_utf_8_is_reported(tmp_path):
    for kind, raw in ((arrow.string(), arrow.binary()), (arrow.large_string(), arrow.large_binary())):
        broken = arrow.array([b"a", b"\xff", b"b"], raw).view(kind)
        arrow.parquet.write_table(arrow.table({"text": broken}), tmp_path / "a.parquet")
        assert [found.broken for found in read(tmp_path / "a.parquet")] == ["", "not UTF-8", ""]


@pytest.mark.parametrize(
    ("pattern", "parts"),
    [
        ("*.jsonl", ("*.jsonl", "matches no file", "notes.json, x.weird")),
        ("nowhere/*.txt", ("matches no file", "no folder", "/nowhere'")),
        ("note.json", ("note.json", "matches no file", "did you mean notes.json")),
        ("sub", ("is a folder", "expected files", "/sub/*.jsonl'")),
        ("x.weird", ("format", "/x.weird", "expected .txt, ", "--format text, lines")),
    ],
)
def test_a_pattern_without_files_states_what_there_is(tmp_path, pattern, parts):
    (tmp_path / "notes.json").touch()
    (tmp_path / "x.weird").touch()
    (tmp_path / ".sub").mkdir()
    if pattern == "sub":
        (tmp_path / "sub").mkdir()
    with refused(*parts):
        find_inputs([str(tmp_path / pattern)], None, tmp_path / "out")


def test_files_are_found_once_in_order_and_never_in_the_output(tmp_path):
    for name in ("b.txt", "a[1].txt", "c/d.md", "out/e.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    patterns = [str(tmp_path / pattern) for pattern in ("**/*.txt", "*.txt", "a[1].txt", "**/*.md")]
    found = find_inputs(patterns, None, tmp_path / "out")
    assert [file.path for file in found] == [str(tmp_path / name) for name in ("a[1].txt", "b.txt", "c/d.md")]


def found_in(tmp_path, *patterns):
    """Paths, relative to the folder, of the files that patterns match there."""
    found = find_inputs([str(tmp_path / pattern) for pattern in patterns], None, tmp_path / "out")
    return [os.path.relpath(file.path, tmp_path) for file in found]


def test_a_file_that_is_reached_over_symlinks_is_read_once(tmp_path):
    """Two loops: a plain glob would follow each of 2**40 ways."""
    for name in ("a/b/x.txt", "a/y.txt", "elsewhere/z.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "a" / "b" / "up").symlink_to("..")
    (tmp_path / "a" / "self").symlink_to(".")
    (tmp_path / "a" / "far").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "a" / "copy.txt").symlink_to("b/x.txt")
    (tmp_path / "a" / "circle").symlink_to("circle")
    assert found_in(tmp_path, "a/**/*.txt") == ["a/copy.txt", "a/far/z.txt", "a/y.txt"]
    assert found_in(tmp_path, "a/b/*.txt", "a/b/up/b/x.txt", "a/self/b/*.txt") == ["a/b/x.txt"]
    assert found_in(tmp_path, "**/*.txt") == ["a/copy.txt", "a/y.txt", "elsewhere/z.txt"]
    with refused("--input", "/a/circle'", "cannot be read", "symbolic links"):
        found_in(tmp_path, "a/circle")


PATTERNS_OF_GLOB = ("*", "**", "**/*", "a/*", "*/*.txt", "**/b/*", "**/.h*", ".*/*", "a/?.txt", "a/[x-z].txt",
                    "a/../a/*.txt", "**/**/x.txt", "nowhere/*", "a/y.txt/*")  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS_OF_GLOB)
def test_patterns_mean_what_they_mean_to_glob(tmp_path, pattern):
    for name in ("a/b/x.txt", "a/y.txt", ".hidden/z.txt", "a/.h.txt", "c.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    files = {name for name in glob.glob(str(tmp_path / pattern), recursive=True) if os.path.isfile(name)}
    assert {name for name in matches(tmp_path / pattern) if os.path.isfile(name)} == files


def test_a_file_whose_name_is_no_text_is_named(tmp_path):
    with open(os.path.join(os.fsencode(tmp_path), b"bad\xff.txt"), "w") as file:
        file.write("x")
    with refused("--input", "bad\\udcff.txt", "not UTF-8"):
        found_in(tmp_path, "*.txt")


def test_a_parquet_with_two_columns_of_the_name_is_refused(tmp_path):
    path, column = tmp_path / "a.parquet", arrow.array(["a"])
    arrow.parquet.write_table(arrow.Table.from_arrays([column, column], ["text", "text"]), path)
    with refused("--text-key 'text'", "a.parquet", "2 columns", "expected one"):
        read(path)
    arrow.parquet.write_table(arrow.Table.from_arrays([column] * 3, ["id", "id", "text"]), path)
    assert [found.text for found in read(path)] == ["a"]


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.txt.gz", "a.parquet.zst"])
def test_a_file_that_unpacks_to_far_more_than_it_is_is_refused(tmp_path, name, monkeypatch):
    path = write(tmp_path / name, [("text " * 20_000) for _ in range(20)])
    size = path.stat().st_size
    [file] = find_inputs([str(path)], None, tmp_path / "out")

    def texts(max_expansion: int):
        parts = {"key": "text", "scratch": tmp_path, "max_expansion": max_expansion}
        return [found.text for found in documents(file, 0, file.bytes, **parts)]

    unlimited = texts(1)
    monkeypatch.setattr(compression, "UNLIMITED_BYTES", 1000)
    limit = 100_000 * 20 // size
    for refused_at in (1, 5):
        assert 5 * size < 100_000, "the file is a bomb"
        with refused(name, f"has {size} bytes", f"more than {max(1000, refused_at * size)}", "--max-expansion"):
            texts(refused_at)
    assert texts(2 * limit + 10) == unlimited
    assert not list(tmp_path.glob("unpacked-*"))


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.txt"])
def test_a_document_that_is_too_long_is_refused(tmp_path, name, monkeypatch):
    path = write(tmp_path / name, ["x" * 3000])
    monkeypatch.setattr(prepared_documents, "LONGEST_DOCUMENT", 4000)
    assert len(read(path)[0].text) == 3000
    monkeypatch.setattr(prepared_documents, "LONGEST_DOCUMENT", 2000)
    with refused(name, "more than 2000 bytes"):
        read(path)


def test_shares_of_a_table_follow_its_row_groups():
    assert [share_of_rows([5, 5, 5, 5, 2], share, 3) for share in range(3)] == [range(5), range(5, 15), range(15, 22)]
    assert [share_of_rows([6, 3], share, 5) for share in range(5)] == [
        range(2), range(2, 4), range(4, 6), range(6, 7), range(7, 9)
    ]  # fmt: skip

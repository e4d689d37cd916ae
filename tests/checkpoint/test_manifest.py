"""The manifest: one text for given files, any other text refused."""

import hashlib
import os

import pytest

from jaxpar.checkpoint import digests, manifest, sealing
from jaxpar.checkpoint.errors import Damage
from tests.sentences import refused


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "00000001"
    (folder / "state" / "d").mkdir(parents=True)
    (folder / "facts.json").write_bytes(b"{}\n")
    (folder / "state" / "d" / "data").write_bytes(bytes(range(256)) * 5)
    (folder / "state" / "empty").write_bytes(b"")
    return folder


def seal(folder, step=1):
    sealing.seal(folder, step, [], meeting="test")


def test_every_file_is_listed_with_its_size_and_digest(folder):
    seal(folder)
    entries = manifest.read(folder).files
    assert {name: entry.size for name, entry in entries.items()} == {
        "facts.json": 3,
        "state/d/data": 1280,
        "state/empty": 0,
    }
    for name, entry in entries.items():
        piece = hashlib.blake2b((folder / name).read_bytes(), digest_size=32).digest()
        assert entry.digest == hashlib.blake2b(piece, digest_size=32).hexdigest()
    manifest.verify(folder)
    manifest.verify_sizes(folder)


def test_a_large_file_is_hashed_in_pieces(folder, monkeypatch):
    monkeypatch.setattr(digests, "PIECE_BYTES", 100)
    monkeypatch.setattr(digests, "READ_BYTES", 30)
    seal(folder)
    content = (folder / "state/d/data").read_bytes()
    pieces = [hashlib.blake2b(content[i : i + 100], digest_size=32).digest() for i in range(0, 1280, 100)]
    want = hashlib.blake2b(b"".join(pieces), digest_size=32).hexdigest()
    assert manifest.read(folder).files["state/d/data"].digest == want
    for place in (0, 99, 100, 1279):
        (folder / "state/d/data").write_bytes(content[:place] + b"!" + content[place + 1 :])
        with refused("state/d/data", "corrupt", "manifest.json", error=Damage):
            manifest.verify(folder)


def test_any_changed_bit_of_the_manifest_is_found(folder):
    seal(folder)
    path = folder / manifest.MANIFEST
    intact = path.read_bytes()
    for place in range(len(intact)):
        path.write_bytes(intact[:place] + bytes([intact[place] ^ (1 << place % 8)]) + intact[place + 1 :])
        with pytest.raises(Damage, match=r"manifest\.json (is corrupt|has version)"):
            manifest.read(folder)


def written(name="facts.json", step=1):
    return manifest.encode({name: digests.Entry(3, "")}, step)


ELSEWHERE = ("../outside", "/etc/hostname", "state/../../outside", "..\\outside", "")
NO_FILES = ("a\0b", "\ud800", "state/\udc80")
OTHERS = (b"", b"[]", b"null", b'{"version": 1}', b'{"version": 1, "files": [1]}', b"\xff", b"[", b"[" * 100_000)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        *((content, ("corrupt",)) for content in OTHERS),
        *((written(step=step), ("corrupt",)) for step in ("1", 1.0, True, [1])),
        *((written(name), ("outside", repr(name))) for name in ELSEWHERE),
        *((written(name), ("cannot be", repr(name))) for name in NO_FILES),
        *((written().replace(b'"version": 2', b'"version": %d' % n), (f"version {n}", "version 2")) for n in (1, 3)),
    ],
    ids=range(22),
)
def test_a_manifest_of_another_form_or_version_or_of_files_elsewhere_is_refused(folder, content, parts):
    """Before a file that it names is opened."""
    (folder / manifest.MANIFEST).write_bytes(content)
    for check in (manifest.verify, manifest.verify_sizes):
        with refused("manifest.json", *parts, error=Damage):
            check(folder)


def test_sealing_does_not_depend_on_an_earlier_attempt(folder):
    (folder / "manifest.json.tmp").write_bytes(b"half")
    seal(folder)
    assert "manifest.json.tmp" not in manifest.read(folder).files
    manifest.verify(folder)


def test_the_step_is_part_of_the_manifest_and_the_folder_has_its_name(folder):
    seal(folder)
    assert manifest.read(folder).step == 1
    later = folder.rename(folder.with_name("00000002"))
    for check in (manifest.verify, manifest.verify_sizes):
        with refused("manifest.json", "step 1", "'00000002'", "expected 00000001", error=Damage):
            check(later)
    path = later / manifest.MANIFEST
    path.write_text(path.read_text().replace('"step": 1', '"step": 2'))
    with refused("manifest.json", "corrupt", error=Damage):
        manifest.read(later)


def test_the_processes_of_a_job_share_the_bytes_of_a_checkpoint_evenly():
    files = {str(size): digests.Entry(size, "") for size in (0, 0, 3, 5, 8, 8, 9, 40, 41)}
    files |= {f"empty{n}": digests.Entry(0, "") for n in range(6)}
    lists = manifest.divided(files, 3)
    assert sorted(name for names in lists for name in names) == sorted(files)
    sizes = [sum(files[name].size for name in names) for names in lists]
    assert max(sizes) <= 41
    assert all(manifest.divided(files, 20)[n] for n in range(len(files))), "every process has some where there are"


def test_each_process_verifies_what_it_wrote_where_as_many_restore():
    sizes = {"state/ocdbt.process_0/d/a": 30, "state/ocdbt.process_1/d/b": 90, "state/d/c": 5, "facts.json": 2}
    files = {name: digests.Entry(size, "") for name, size in sizes.items()}
    small = ["state/d/c", "facts.json"]
    assert manifest.divided(files, 2) == [["state/ocdbt.process_0/d/a", *small], ["state/ocdbt.process_1/d/b"]]
    assert [sum(sizes[name] for name in names) for names in manifest.divided(files, 3)] == [90, 30, 7]
    assert manifest.divided(files, 1) == [sorted(files, key=lambda name: -sizes[name])]


def test_no_process_verifies_alone_what_one_wrote():
    """Orbax has one process write most of the weights that all hosts have alike."""
    files = {f"state/ocdbt.process_{process}/d/a": digests.Entry(2, "") for process in range(8)}
    files |= {f"state/ocdbt.process_0/d/{n}": digests.Entry(100, "") for n in range(40)}
    sizes = [sum(files[name].size for name in names) for names in manifest.divided(files, 8)]
    assert max(sizes) <= 504, "the mean is 502"


def test_a_pipe_in_the_place_of_a_file_is_not_read(folder):
    seal(folder)
    (folder / "state" / "empty").unlink()
    os.mkfifo(folder / "state" / "empty")
    for check in (manifest.verify, manifest.verify_sizes):
        with refused("state/empty", "not a regular file", error=Damage):
            check(folder)

"""The manifest: one text for given files, any other text refused."""

from __future__ import annotations

import hashlib
import json

import pytest

from jaxpar.checkpoint import manifest
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


def test_every_file_is_listed_with_its_size_and_digest(folder):
    manifest.seal(folder)
    entries = manifest.read(folder)
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
    monkeypatch.setattr(manifest, "PIECE_BYTES", 100)
    monkeypatch.setattr(manifest, "READ_BYTES", 30)
    manifest.seal(folder)
    content = (folder / "state/d/data").read_bytes()
    pieces = [hashlib.blake2b(content[i : i + 100], digest_size=32).digest() for i in range(0, 1280, 100)]
    want = hashlib.blake2b(b"".join(pieces), digest_size=32).hexdigest()
    assert manifest.read(folder)["state/d/data"].digest == want
    for place in (0, 99, 100, 1279):
        (folder / "state/d/data").write_bytes(content[:place] + b"!" + content[place + 1 :])
        with pytest.raises(Damage, match="state/d/data is corrupt"):
            manifest.verify(folder)


def test_any_changed_bit_of_the_manifest_is_found(folder):
    manifest.seal(folder)
    path = folder / manifest.MANIFEST
    intact = path.read_bytes()
    for place in range(len(intact)):
        path.write_bytes(intact[:place] + bytes([intact[place] ^ (1 << place % 8)]) + intact[place + 1 :])
        with pytest.raises(Damage, match=r"manifest\.json (is corrupt|has version)"):
            manifest.read(folder)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"null", b'{"version": 1}', b'{"version": 1, "files": [1]}', b"\xff", b"[", b"[" * 100_000]
)
def test_a_manifest_of_another_form_is_corrupt(folder, text):
    (folder / manifest.MANIFEST).write_bytes(text)
    with pytest.raises(Damage, match=r"^its manifest\.json is corrupt$"):
        manifest.read(folder)


def test_a_manifest_of_a_later_release_says_so(folder):
    manifest.seal(folder)
    path = folder / manifest.MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2}))
    with refused("manifest.json", "version 2", "version 1", error=Damage):
        manifest.read(folder)


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "state/../../outside", "..\\outside", ""])
def test_a_manifest_that_names_files_elsewhere_is_refused_before_they_are_opened(folder, name):
    (folder / manifest.MANIFEST).write_bytes(manifest.encode({name: manifest.Entry(0, "")}))
    with pytest.raises(Damage, match="names a file outside the checkpoint"):
        manifest.verify(folder)


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "state/\udc80"])
def test_a_manifest_with_a_name_that_no_file_has_is_refused(folder, name):
    (folder / manifest.MANIFEST).write_bytes(manifest.encode({name: manifest.Entry(0, "")}))
    for check in (manifest.verify, manifest.verify_sizes):
        with pytest.raises(Damage, match="names a file that cannot be"):
            check(folder)


def test_sealing_does_not_depend_on_an_earlier_attempt(folder):
    (folder / "manifest.json.tmp").write_bytes(b"half")
    manifest.seal(folder)
    assert "manifest.json.tmp" not in manifest.read(folder)
    manifest.verify(folder)

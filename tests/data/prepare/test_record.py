"""The record of a preparation: with another one a folder is not continued."""

import json
from pathlib import Path

from jaxpar.data.prepare.record import RECORD
from jaxpar.data.tokens.digests import digest
from tests.data.folders import prepared, texts
from tests.sentences import refused


def test_a_folder_of_an_earlier_release_is_not_continued(tmp_path: Path):
    record = prepared(tmp_path / "out", texts(3)).path / RECORD
    plain = json.loads(record.read_text()) | {"version": 1}
    del plain["digest"]
    plain["digest"] = digest(json.dumps(plain, sort_keys=True).encode())
    record.write_text(json.dumps(plain, indent=1, sort_keys=True) + "\n")
    with refused("prepare.json was written by another release (version 1)", "another --out"):
        prepared(tmp_path / "out", texts(3))

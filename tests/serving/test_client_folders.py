"""Folders that a client may name: inside those of the operator, links resolved."""

from pathlib import Path

import pytest

from jaxpar.serving.client_folders import folder_within
from jaxpar.serving.refusals import Refusal


def test_only_folders_inside_the_operators_are_taken(tmp_path: Path):
    allowed, outside = tmp_path / "allowed", tmp_path / "outside"
    for folder in (allowed / "a" / "b", outside):
        folder.mkdir(parents=True)
    (allowed / "link").symlink_to(outside)
    (allowed / "file").touch()
    take = lambda path, **more: folder_within(path, [allowed], "lora_path", "--adapters", **more)
    assert take(str(allowed / "a")) == allowed / "a" and take(f"{allowed}/a/../a/b") == allowed / "a" / "b"
    assert take(str(allowed / "a"), directly=True) == allowed / "a"
    for path in (outside, allowed, allowed / "link", allowed / "file", allowed / "gone", f"{allowed}/../outside", "\0"):
        with pytest.raises(Refusal, match="lora_path") as refused:
            take(str(path))
        assert refused.value.status == 400
    for path, more in ((7, {}), (str(allowed / "a" / "b"), {"directly": True})):
        with pytest.raises(Refusal, match="--adapters"):
            take(path, **more)

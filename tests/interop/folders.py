"""Folders in Hugging Face's format to change and to break, made of the goldens."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from jaxpar.interop.mapping.keys import HFConfig
from jaxpar.interop.sources.tensor_files import TensorFiles
from tests.goldens.loading import FOLDER


def golden(name: str, **changed: Any) -> HFConfig:
    """The `config.json` of a golden, with some keys changed; `...` removes a key."""
    values = json.loads((FOLDER / name / "config.json").read_text()) | changed
    return HFConfig("config.json", {key: value for key, value in values.items() if value is not ...})


def copy_of(name: str, to: Path, **config: Any) -> Path:
    """A copy of a golden's folder at `to`, with keys of its `config.json` changed; None removes a key."""
    shutil.copytree(FOLDER / name, to)
    values = json.loads((to / "config.json").read_text()) | config
    (to / "config.json").write_text(json.dumps({key: value for key, value in values.items() if value is not None}))
    return to


def check_parts(files: TensorFiles, name: str, wanted: np.ndarray) -> None:
    """A tensor as it is read, whole and random parts of it, is `wanted`."""
    stored, random = files.tensors[name], np.random.default_rng(list(name.encode()))
    assert (stored.shape, stored.dtype) == (wanted.shape, wanted.dtype)
    found = files.read(name, tuple(slice(0, size) for size in wanted.shape))
    assert found.dtype == wanted.dtype and found.tobytes() == wanted.tobytes()
    for _ in range(20):
        ends = [sorted(random.choice(size + 1, 2, replace=False)) for size in wanted.shape]
        region = tuple(slice(int(first), int(last)) for first, last in ends)
        assert files.read(name, region).tobytes() == wanted[region].tobytes()


def tensors(folder: Path) -> dict[str, np.ndarray]:
    """The tensors of a folder in one file, or of one file."""
    return load_file(folder if folder.is_file() else folder / "model.safetensors")


def rewrite(folder: Path, changed: dict[str, np.ndarray | None]) -> Path:
    """The folder, with some tensors replaced, added, or removed by None."""
    own = tensors(folder) | changed
    save_file({name: leaf for name, leaf in own.items() if leaf is not None}, folder / "model.safetensors")
    return folder


def in_shards(folder: Path, number: int = 2) -> Path:
    """The folder, with its tensors in shards and an index."""
    own = tensors(folder)
    (folder / "model.safetensors").unlink()
    names = [f"model-{place:05d}-of-{number:05d}.safetensors" for place in range(1, number + 1)]
    by_name = {name: names[place % number] for place, name in enumerate(own)}
    for shard in names:
        save_file({name: leaf for name, leaf in own.items() if by_name[name] == shard}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": by_name}))
    return folder

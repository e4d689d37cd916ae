"""Files that a user names are regular and of a size that they can have: a pipe is refused, and not waited for."""

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from benchmarks.validation.published import read_runs
from jaxpar.config import load_config
from jaxpar.config.reading.text_file import LONGEST, read_file, read_text_file
from jaxpar.data.prepare.input.files import find_inputs
from jaxpar.data.tokens.reference_file import ReferenceFile
from jaxpar.data.tokens.token_index import read_index
from jaxpar.data.tokens.tokenizer_file import load_tokenizer
from jaxpar.hardware.cluster import read_cluster
from jaxpar.layout import plan_file
from jaxpar.layout.choices.pipeline import table_text
from jaxpar.observe.report.page import check_page
from jaxpar.observe.writers.jsonl import read_metrics
from jaxpar.planner.placement.placement import read_bandwidth
from jaxpar.runtime.batch import Field
from jaxpar.training.field_folder import FieldFolder
from tests.sentences import refused


def read_reference(path: Path) -> object:
    with TemporaryDirectory() as folder:
        file = ReferenceFile(Path(folder), {"model": "a"}, 6)
        file.path.symlink_to(path)
        return file.read()


def read_routing(path: Path) -> object:
    with TemporaryDirectory() as folder:
        Path(folder, "00000000.npy").symlink_to(path)
        return FieldFolder(folder, Field("routing")).read(np.arange(2), 2, 4)


READERS: dict[str, Callable[[Path], object]] = {
    "configuration": load_config, "cluster": read_cluster, "plan": plan_file.read, "bandwidths": read_bandwidth,
    "published runs": read_runs, "table": lambda path: table_text(str(path)),
    "tokenizer": lambda path: load_tokenizer(path, "--tokenizer x"), "metrics": read_metrics, "page": check_page,
    "input": lambda path: find_inputs([str(path)], "text", path.parent / "out"), "reference": read_reference,
    "routing": read_routing, "bytes": read_file,
}  # fmt: skip


@pytest.mark.parametrize("read", READERS.values(), ids=READERS.keys())
def test_a_pipe_or_a_device_is_refused_at_once(tmp_path: Path, read: Callable[[Path], object]):
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    # Held open, so that a reader that opens it would wait for text and not for a writer.
    holder = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        with refused("pipe", "expected a regular file"):
            read(pipe)
    finally:
        os.close(holder)
    with refused("device", "expected a regular file"):
        read(Path("/dev/zero"))


def test_a_token_folder_whose_index_is_a_pipe_is_refused_at_once(tmp_path: Path):
    os.mkfifo(tmp_path / "index.json")
    with refused("index.json", "pipe", "expected a regular file"):
        read_index(tmp_path)


def test_a_file_that_is_larger_than_its_kind_is_refused(tmp_path: Path):
    file = tmp_path / "run.yaml"
    file.write_bytes(b"#" * (LONGEST + 1))
    with refused(str(file), f"more than {LONGEST} bytes"):
        load_config(file)
    file.write_bytes(b"a\r\nb")
    assert read_text_file(file) == "a\nb"


@pytest.mark.parametrize("reader", sorted(READERS.keys() - {"published runs", "page"}))
def test_what_git_lfs_leaves_in_place_of_a_file_is_called_that(reader: str, tmp_path: Path):
    pointer = tmp_path / "pointer"
    pointer.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 17209920\n")
    with refused("Git LFS pointer", "git lfs pull"):
        READERS[reader](pointer)

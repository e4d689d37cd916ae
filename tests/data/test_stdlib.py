"""The standard library as a data set: which files, which split, which tokens."""

import itertools
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from jaxpar.config.schema import DataConfig
from jaxpar.data import stdlib
from jaxpar.data.baseline import bigram_loss
from jaxpar.data.loader import batch_rows
from jaxpar.data.sources import open_data
from jaxpar.data.stream import TokenStream
from tests.sentences import refused


@pytest.fixture(scope="module")
def data():
    return open_data(DataConfig(sequence_length=512, batch_size=16), vocab=None, seed=0)


def documents(stream: TokenStream) -> list[bytes]:
    """Text of each document, whose last token must be the end-of-document token and no other."""
    parts = np.split(stream.tokens, stream.starts[1:])
    assert all(part[-1] == 256 and (part[:-1] < 256).all() for part in parts)
    return [part[:-1].astype(np.uint8).tobytes() for part in parts]


def test_every_module_is_in_one_split_and_about_a_twelfth_is_for_validation(data):
    root = Path(sysconfig.get_path("stdlib"))
    train, validation = (set(documents(data.train.stream)), set(documents(data.validation.stream)))
    assert 0.06 < len(data.validation.stream) / (len(data.train.stream) + len(data.validation.stream)) <= 0.081
    assert {(root / "random.py").read_bytes(), (root / "asyncio" / "tasks.py").read_bytes()} <= train | validation
    for package in ("json", "email", "asyncio", "logging"):
        texts = {path.read_bytes() for path in (root / package).glob("*.py")} - {b""}
        assert texts <= train or texts <= validation


def test_the_split_does_not_separate_a_module_from_its_python_twin():
    assert stdlib.family("_pydecimal.py") == stdlib.family("decimal.py") == "decimal"
    assert stdlib.family("_threading_local.py") == "threading_local"
    assert stdlib.family("pydoc_data/topics.py") == "pydoc_data" and stdlib.family("__future__.py") == "future"


def test_tests_and_installed_packages_and_generated_files_are_left_out(tmp_path):
    kept = {"a.py": b"a" * 50, "b/__init__.py": b"b" * 30, "b/c.py": b"c" * 20, "d.py": b"d" * 900, "e.py": b""}
    left_out = ["test/a.py", "b/tests/x.py", "site-packages/p.py", "_sysconfigdata_x.py", "note.txt", "b/test/y.py"]
    for name, text in kept.items() | dict.fromkeys(left_out, b"zzz").items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(text)
    texts = [documents(stream) for stream in stdlib.read_stdlib(tmp_path)]
    assert sorted(itertools.chain(*texts)) == sorted(text for text in kept.values() if text)
    assert all(split == sorted(split) for split in texts), "documents are in the order of their paths"
    assert b"d" * 900 in texts[0], "what is more than the validation share is never for validation"


def test_the_split_is_decided_by_names_and_stays():
    sizes = {f"module{number}": 10 for number in range(50)}
    expected = {"module15", "module31", "module32", "module37"}
    assert stdlib.validation_families(sizes) == expected
    assert stdlib.validation_families(dict(reversed(sizes.items()))) == expected


def test_a_python_without_sources_is_a_users_error(tmp_path):
    with refused("data.source=stdlib", "0 Python source files"):
        stdlib.read_stdlib(tmp_path)
    (tmp_path / "only.py").write_text("x = 1")
    with refused("data.source=stdlib", "1 Python source", str(tmp_path), "standard library"):
        stdlib.read_stdlib(tmp_path)


def test_text_survives_encoding_and_decoding(data):
    text = "def naïve(): return '→'\n"
    assert data.decode([*data.encode_start(text), 256]) == text
    assert data.decode(np.array([104, 105, 0xE2], np.int32)) == "hi\ufffd"


def test_a_vocabulary_that_is_too_small_is_a_users_error():
    with refused("model.vocab=256", "data.source=stdlib", "257"):
        open_data(DataConfig(), vocab=256, seed=0)
    assert open_data(DataConfig(), vocab=300, seed=0).vocab == 300


def test_the_bigram_model_of_the_split_is_worth_about_two_and_a_half_nats(data):
    scored = [batch_rows(data.validation, step, 16, range(16)) for step in range(8)]
    assert 2.3 < bigram_loss(data.train.stream, scored, data.vocab) < 2.6


def test_validation_rows_do_not_depend_on_the_seed_and_training_rows_do(data):
    other = open_data(DataConfig(sequence_length=512, batch_size=16), vocab=None, seed=1)
    assert (other.validation.row(3)["tokens"] == data.validation.row(3)["tokens"]).all()
    assert (other.train.row(3)["tokens"] != data.train.row(3)["tokens"]).any()

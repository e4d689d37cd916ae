"""A data source is one file and one entry: nothing else lists the sources by name."""

import sys
from types import ModuleType

import numpy as np
import pytest

from jaxpar.config import load_config
from jaxpar.config.parts import DATA_SOURCES, DataSource
from jaxpar.config.schema import DataConfig
from jaxpar.config.validate import validate
from jaxpar.data import Data, open_data
from jaxpar.data.opened import train_rows
from jaxpar.data.stream import TokenStream
from tests.sentences import refused


def open_counting(config: DataConfig, vocab: int | None, seed: int) -> Data:
    """Numbers from 0 on, with a separator of the configuration."""
    stream = TokenStream(np.arange(60, dtype=np.uint16), np.array([0]))
    rows = train_rows(stream, config, seed, "counting")
    return Data(rows, None, vocab or 60, config.separator, None, None, f"counting from 0 with {config.separator}")


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("counting_source")
    module.open_counting = open_counting  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "counting_source", module)
    entry = DataSource("counting_source:open_counting", keys=("separator",))
    monkeypatch.setitem(DATA_SOURCES, "counting", entry)


@pytest.mark.usefixtures("counting")
def test_an_entry_makes_a_source():
    config = load_config(None, ["data.source=counting", "data.separator=7", "data.sequence_length=8"])
    validate(config)
    data = open_data(config.data, vocab=None, seed=0)
    assert data.description == "counting from 0 with 7" and len(data.train.row(3)["tokens"]) == 8


@pytest.mark.usefixtures("counting")
@pytest.mark.parametrize(
    ("given", "parts"),
    [
        (["data.source=counting", "data.path=a"],
         ("data.path: 'a'", "data.source is counting", "tokens, stream, prompts or demonstrations")),
        (["data.separator=3"], ("data.separator: 3", "data.source is stdlib", "tokens or counting with it", "null")),
        (["data.long_conversations=truncate_end"], ("data.long_conversations: 'truncate_end'", "tokens", "or drop")),
        (["data.source=counting", "loss.name=dpo", "run.init_from=a"], ("data.source is counting", "source: tokens")),
        (["data.source=none"],
         ("data.source", "stdlib, tokens, stream, synthetic, prompts, demonstrations or counting")),
    ],
)  # fmt: skip
def test_keys_and_losses_go_by_what_the_entries_say(given: list[str], parts: tuple[str, ...]):
    with refused(*parts):
        validate(load_config(None, given))

"""A step on conversations counts what the assistant says, and divides by the number of such tokens in the whole batch.

Which tokens those are is found here by the text of the documents, and not by the mask that is stored beside them.
"""

import re
from dataclasses import asdict
from typing import Any

import jax
import numpy as np
import pytest
from tokenizers import Tokenizer

from jaxpar.config.schema import DataConfig
from jaxpar.data import batch_rows, open_data
from jaxpar.data.document_rows import DocumentRows
from tests.data.chat_files import TOKENIZER, VOCAB, prepared_chat
from tests.given_weights import state_with
from tests.goldens.chat.generate import conversations
from tests.reference import decoder64
from tests.reference.small import random_weights
from tests.same_bits import assert_same_bits
from tests.small_run import SmallRun, small
from tests.training.parity.one_device import assert_close

ROWS, LENGTH = 8, 128
SPLIT = {"fsdp": 2, "tensor": 2, "context": 2, "zero": 3}
LAYOUTS: dict[str, dict[str, dict[str, Any]]] = {
    "split": {"parallel": SPLIT},
    "one device": {"parallel": {"fsdp": 1}},
    "fsdp and tensor in tiles": {"parallel": {"fsdp": 2, "tensor": 2}, "memory": {"loss_tiles": 3}},
    "context and microbatches": {"parallel": {"context": 2, "microbatches": 4}},
    "stages": {"parallel": {"pipe": 2, "microbatches": 2}},
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> DocumentRows:
    """Rows of conversations."""
    folder = prepared_chat(tmp_path_factory.mktemp("masked") / "chat", conversations()).path
    config = DataConfig(source="tokens", path=str(folder), sequence_length=LENGTH, batch_size=ROWS)
    found = open_data(config, vocab=VOCAB, seed=1).train
    assert isinstance(found, DocumentRows)
    return found


def said_by_the_assistant(rows: DocumentRows) -> np.ndarray:
    """Whether each token of the stream is of what the assistant says, or ends its turn."""
    tokenizer: Any = Tokenizer.from_file(str(TOKENIZER))
    # A character for each token: the special ones become E, B and F.
    names = {58: "E", 59: "B", 60: "F"}
    text = "".join(names.get(int(token)) or tokenizer.id_to_token(int(token)) for token in rows.stream.tokens[:])
    found = np.zeros(len(text), bool)
    for turn in re.finditer("Bassistant\n([^F]*F)", text):
        found[slice(*turn.span(1))] = True
    return found


def mask_by_the_text(rows: DocumentRows) -> np.ndarray:
    """The mask of the first batch."""
    message, mask = said_by_the_assistant(rows), np.zeros((ROWS, LENGTH), np.float32)
    for row in range(ROWS):
        end = 0
        for document in rows.documents(row):
            first, size = int(rows.stream.starts[:][document]), int(rows.stream.lengths[document]) - 1
            mask[row, end : end + size] = message[first + 1 : first + 1 + size]
            end += size
    return mask


@pytest.mark.matrix(quick=("split",), ci=4)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_loss_and_gradients_of_conversations_equal_float64(rows: DocumentRows, layout: str):
    data = {"sequence_length": LENGTH, "batch_size": ROWS}
    run = SmallRun(small(model={"layers": 2, "vocab": VOCAB, "kv_heads": 4}, data=data, **LAYOUTS[layout]))
    options = asdict(run.config.model)
    weights = random_weights(options, padded_vocab=64)
    batch, mask = batch_rows(rows, 0, ROWS, range(ROWS)), mask_by_the_text(rows)
    assert 0 < mask.mean() < 0.3 and len(set(mask.sum(1))) > 3, "rows count different numbers of tokens"

    state = state_with(run.step, run.by_row(weights) if run.config.parallel.pipe > 1 else weights)
    loss, gradients = run.step.gradients(state, run.place(batch))
    wanted_loss, wanted = decoder64.loss_and_gradients(weights, options, batch | {"mask": mask})
    assert_close(loss, wanted_loss, run.by_layer(gradients), wanted)
    if layout != "split":
        return
    # What is not counted has no part in it: other labels there leave every bit the same.
    labels = np.where(mask > 0, batch["labels"], (batch["labels"] + 7) % VOCAB)
    again, same = run.step.gradients(state, run.place(batch | {"labels": labels.astype(np.int32)}))
    assert float(again) == float(loss)
    assert_same_bits(jax.device_get(same), jax.device_get(gradients))

"""Streamed rows have the documents of a prepared folder, in an order that no number of hosts changes."""

import gzip
import json
import os
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pyarrow.parquet
import pytest

from jaxpar.data.loader import batch_rows
from jaxpar.data.prepare import prepare
from jaxpar.data.prepare.job import TokenForm
from jaxpar.data.streaming.block import BlockReader, BlockTask, BlockTokens
from jaxpar.data.streaming.files import find_files
from jaxpar.data.streaming.lanes import BlockOrder
from jaxpar.data.streaming.rows import StreamRows, first_documents
from jaxpar.data.tokens.tokenizer_file import load_tokenizer
from tests.data.folders import options, quiet, texts, write_jsonl, write_tokenizer
from tests.same_bits import assert_same_bits
from tests.sentences import refused

DOCUMENTS = [*texts(120), "", "x" * 700, *texts(20, seed=1)]
LENGTH, LANES, FRACTION = 48, 8, 0.2


class InThisProcess:
    """Tokenizes blocks when they are asked for."""

    count = 1

    def __init__(self, folder: Path):
        file = write_tokenizer(folder / "tokenizer.json")
        form = TokenForm(tokenizer=file, vocab=257, separator=256, text_key="text")
        self.reader, self.tasks = BlockReader(form, load_tokenizer(file, "it")), list[BlockTask]()

    def submit(self, task: BlockTask) -> Future[BlockTokens]:
        self.tasks.append(task)
        future: Future[BlockTokens] = Future()
        future.set_result(self.reader.tokens(task))
        return future


def write(path: Path) -> Path:
    table = arrow.table({"id": range(len(DOCUMENTS)), "text": DOCUMENTS})
    if path.suffix == ".parquet":
        arrow.parquet.write_table(table, path, row_group_size=50)
    elif path.suffix == ".arrow":
        with arrow.OSFile(str(path), "wb") as file, arrow.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=37)
    else:
        write_jsonl(path, DOCUMENTS)
        if path.suffix == ".gz":
            path.write_bytes(gzip.compress(path.read_bytes()))
    return path


def rows_of(path: Path, seed: int = 3, **options) -> StreamRows:
    order = BlockOrder(find_files(str(path), "data.path", "text"), LANES, seed, FRACTION)
    workers = InThisProcess(path.parent)
    return StreamRows(order, workers, sequence_length=LENGTH, packed=True, name="it", files="them", **options)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("stream") / "a.jsonl")


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("large") / "a.jsonl", texts(1200))


def counted(stream) -> Counter[tuple[int, ...]]:
    """The documents of a stream as tokens, and how often it has each."""
    bounds = [*stream.starts[:].tolist(), len(stream)]
    return Counter(tuple(stream.tokens[first:last].tolist()) for first, last in pairwise(bounds))


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet", "a.arrow"])
def test_blocks_have_the_tokens_of_a_prepared_folder(tmp_path: Path, name: str):
    folder = prepare(options(tmp_path / "folder", write(tmp_path / name)), quiet())
    workers = InThisProcess(tmp_path)
    rows = rows_of(tmp_path / name)
    blocks = rows.order.blocks
    assert len(blocks) >= 2 * LANES
    for validation, wanted in ((False, folder.train), (True, folder.validation)):
        stream = first_documents(workers, blocks, 10**9, validation_fraction=FRACTION, validation=validation)  # pyright: ignore[reportArgumentType]
        assert counted(stream) == counted(wanted)


def test_a_sample_of_the_documents_is_of_all_files(tmp_path: Path):
    for name in "abc":
        write_jsonl(tmp_path / f"{name}.jsonl", [name * 40] * 50)
    rows = rows_of(tmp_path)
    stream = first_documents(rows.workers, rows.order.blocks, 2000, validation_fraction=0.0)
    assert stream is not None and len(stream) < 3000
    assert len(set(stream.tokens[:].tolist())) == 4, "three letters and the end of a document"


def test_an_epoch_of_the_lanes_has_each_document_once(source: Path):
    rows = rows_of(source)
    every = Counter[tuple[int, ...]]()
    for lane in range(LANES):
        for index in range(rows.order.blocks_of(lane)):
            task = rows.order.task(lane, 0, index)
            tokens = rows.workers.reader.tokens(task)  # pyright: ignore[reportAttributeAccessIssue]
            bounds = [0, *tokens.stops.tolist()]
            every.update(tuple(tokens.tokens[first:last].tolist()) for first, last in pairwise(bounds))
    assert every == counted(rows.stream)


def test_rows_of_a_lane_are_its_documents_end_to_end(source: Path):
    rows = rows_of(source)
    lane = 5
    wanted, turn = [], (0, 0)
    while sum(map(len, wanted)) < 40 * LENGTH + 1:
        wanted.append(rows.workers.submit(rows.order.task(lane, *turn)).result().tokens)
        turn = rows.order.after(lane, *turn)
    wanted = np.concatenate(wanted)
    for number in range(40):
        row, first = rows.row(lane + number * LANES), number * LENGTH
        np.testing.assert_array_equal(row["tokens"], wanted[first : first + LENGTH])
        follows = row["mask"] > 0
        np.testing.assert_array_equal(row["labels"][follows], wanted[first + 1 : first + LENGTH + 1][follows])
        np.testing.assert_array_equal(~follows, wanted[first : first + LENGTH] == 256)


def documents_of(tokens: BlockTokens) -> list[tuple[int, ...]]:
    bounds = [0, *tokens.stops.tolist()]
    return [tuple(tokens.tokens[first:last].tolist()) for first, last in pairwise(bounds)]


def test_the_seed_and_the_epoch_decide_the_order_of_blocks_and_of_documents(large: Path):
    def epoch(seed: int, number: int) -> list[BlockTask]:
        order = rows_of(large, seed).order
        return [order.task(lane, number, index) for lane in range(LANES) for index in range(order.blocks_of(lane))]

    one, other, later = epoch(3, 0), epoch(4, 0), epoch(3, 1)
    assert one == epoch(3, 0)
    numbers = [[task.block.index for task in tasks] for tasks in (one, other, later)]
    assert numbers[0] != numbers[1] and numbers[0] != numbers[2]
    reader = rows_of(large).workers.reader  # pyright: ignore[reportAttributeAccessIssue]
    in_one = {task.block.index: documents_of(reader.tokens(task)) for task in one}
    index = max(in_one, key=lambda index: len(in_one[index]))
    in_file = documents_of(reader.tokens(replace(one[0], block=replace(one[0].block, index=index), order=())))
    orders = [in_file, in_one[index]]
    orders += [documents_of(reader.tokens(task)) for task in (*other, *later) if task.block.index == index]
    assert len(in_file) >= 4 and all(sorted(order) == sorted(in_file) for order in orders)
    assert len(set(map(tuple, orders))) == 4


def test_a_lane_has_few_blocks_and_two_made_ahead(large: Path):
    rows = rows_of(large)
    tasks = rows.workers.tasks  # pyright: ignore[reportAttributeAccessIssue]
    batch_rows(rows, 0, LANES, range(LANES))
    assert tasks[:LANES] == [rows.order.task(lane, 0, 0) for lane in range(LANES)], "all lanes begin at once"
    assert len(tasks) >= 3 * LANES, "two blocks are made ahead"
    for number in range(1, 100):
        rows.row(number * LANES)
        assert len(rows._lanes[0]._blocks) <= 7
    tasks.clear()
    rows.row(50 * LANES)
    assert len(tasks) <= 4, "it is known where the rows of long ago begin"


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path):
    source = write(tmp_path / "a.jsonl")
    rows = rows_of(source)
    os.utime(source)
    with refused("a.jsonl changed while the run read it", "continues with the old file"):
        rows.row(0)


def test_a_save_does_not_wait_for_a_tokenizer(source: Path):
    rows, later = rows_of(source), Future[BlockTokens]()
    tokens = rows.workers.submit(rows.order.task(0, 0, 0)).result()
    rows.workers.submit = lambda task: later
    with ThreadPoolExecutor() as threads:
        row = threads.submit(rows.row, 0)
        while not rows._lanes or not rows._lanes[0]._blocks:
            time.sleep(0.001)
        try:
            saved = threads.submit(lambda: (rows.positions(0), rows.epochs(0), rows.ask([0])))
            assert saved.result(timeout=10)[0]["lanes"]["0"] == (0, 0, 0)
            assert not row.done()
        finally:
            later.set_result(tokens)


def test_hosts_read_the_rows_of_one_and_another_number_of_hosts_continues_in_the_same_order(source: Path):
    one = rows_of(source)
    wanted = {example: one.row(example) for example in range(60 * LANES)}
    halves = [rows_of(source) for _ in range(2)]
    for step in range(25):  # prepared ahead of the save, which is of step 20
        for host, half in enumerate(halves):
            shared = range(4 * host, 4 * host + 4)
            part, whole = batch_rows(half, step, LANES, shared), batch_rows(one, step, LANES, range(LANES))
            assert_same_bits(part, {name: values[shared.start : shared.stop] for name, values in whole.items()})
            assert set(half._lanes) == set(shared), "a host tokenizes its lanes alone"
    saved = [json.loads(json.dumps(half.positions(20 * LANES))) for half in halves]
    joined = saved[0] | {"lanes": saved[1]["lanes"] | saved[0]["lanes"]}
    assert not saved[0]["lanes"].keys() & saved[1]["lanes"].keys() and len(joined["lanes"]) == LANES
    for host in range(4):
        quarter = rows_of(source).continued(joined)
        tasks = quarter.workers.tasks  # pyright: ignore[reportAttributeAccessIssue]
        for step in range(20, 60):
            batch_rows(quarter, step, LANES, [2 * host, 2 * host + 1])
            for example in (step * LANES + 2 * host, step * LANES + 2 * host + 1):
                assert_same_bits(quarter.row(example), wanted[example])
            if step == 20:
                assert len(tasks) <= 2 * 4, "nothing is read from the start"
    # A save before the first row of a process that continued is that of the one before.
    again = rows_of(source).continued(joined).positions(20 * LANES)
    assert json.loads(json.dumps(again)) == joined


def test_rows_may_be_asked_for_in_any_order(source: Path):
    in_order, rows = rows_of(source), rows_of(source)
    wanted = {number * LANES: in_order.row(number * LANES) for number in range(30)}
    for example in np.random.default_rng(0).permutation(list(wanted)).tolist():
        assert_same_bits(rows.row(example), wanted[example])


def test_epochs_grow_by_one_with_each_use_of_the_documents(source: Path):
    rows = rows_of(source)
    tokens = len(rows.stream)
    for epochs in (1, 2, 3):
        examples = epochs * tokens // LENGTH
        for example in range(examples):
            rows.row(example)
        assert rows.epochs(examples)["it"] == pytest.approx(epochs, abs=0.1)

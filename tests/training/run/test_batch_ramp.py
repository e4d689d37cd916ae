"""Batches grow as `data.batch_ramp` says, each of the rows after those of the batch before."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxpar.config import Config, DataConfig
from jaxpar.config.ramp import examples_before, ramp_words, stretches
from jaxpar.config.schema.training import RampPart
from jaxpar.config.validate import validate
from tests.sentences import refused
from tests.small_run import small
from tests.training.runs import fit, losses, make_run, run_config

RAMP = (RampPart(2, steps=2), RampPart(4, tokens=200.0))
"""Two batches of 2 rows, and of 4 rows of 32 tokens as many as reach 200."""


WIDE = {"fsdp": 2, "microbatches": 4}


def ramped(folder: Path, steps: int, ramp: tuple[RampPart, ...] = RAMP, **sections: Any) -> Config:
    config = run_config(folder, steps, **sections)
    return replace(config, data=replace(config.data, batch_ramp=ramp))


def test_the_first_row_of_a_batch_is_the_rows_of_those_before():
    data = DataConfig(sequence_length=32, batch_size=8, batch_ramp=RAMP)
    assert stretches(data) == [(0, 0, 2), (2, 4, 4), (4, 12, 8)]
    assert [examples_before(data, batch) for batch in range(7)] == [0, 2, 4, 8, 12, 20, 28]
    assert ramp_words(data) == "2 rows to step 2; 4 rows to step 4" and ramp_words(DataConfig()) == ""


@pytest.mark.parametrize("layout", [{}, {"fsdp": 2, "microbatches": 4}, {"fsdp": 2, "tensor": 2}])
def test_batches_have_consecutive_rows_on_any_mesh(tmp_path: Path, layout: dict[str, Any]):
    run = make_run(ramped(tmp_path, 8, parallel=layout))
    batches = [batch for batch, _ in itertools.islice(run.batches_from(0), 6)]
    parts = layout.get("microbatches", 1)
    assert batches[-1]["tokens"].shape[:2] == (parts, 8 // parts)
    rows = [sorted(np.asarray(batch["examples"]).ravel().tolist()) for batch in batches]
    assert rows == [[0, 1], [2, 3], [*range(4, 8)], [*range(8, 12)], [*range(12, 20)], [*range(20, 28)]]
    later = next(iter(run.batches_from(3)))[0]
    np.testing.assert_array_equal(later["tokens"], batches[3]["tokens"])
    run.left_out = (1,)
    assert run.tokens(3, 3) == (2 + 4 + 4) * 32 and run.tokens(4, 1) == 8 * 32


@pytest.mark.long
def test_a_ramp_trains_as_runs_of_its_sizes_and_continues(tmp_path: Path):
    layout = {"fsdp": 2, "microbatches": 4}
    fit(ramped(tmp_path / "at once", 6, parallel=layout))
    once = losses(ramped(tmp_path / "at once", 6))
    config = run_config(tmp_path / "small", 2, data={"batch_size": 2}, parallel={"fsdp": 2})
    fit(config)
    alone = losses(config)
    assert [once[step] for step in (1, 2)] == [pytest.approx(alone[step], rel=1e-6) for step in (1, 2)]
    fit(ramped(tmp_path / "twice", 3, parallel=layout))
    config = ramped(tmp_path / "twice", 6, parallel=layout)
    summary, _ = fit(config)
    assert losses(config) == once
    batches = itertools.islice(make_run(config).batches_from(0), 6)
    assert summary.tokens == sum(int(batch["mask"].sum()) for batch, _ in batches)


@pytest.mark.parametrize(
    ("ramp", "sections", "parts"),
    [
        ((RampPart(2),), {}, ("data.batch_ramp[0]", "either steps or tokens")),
        ((RampPart(4, steps=2), RampPart(4, steps=2)), {}, ("data.batch_ramp[0].size", "grow")),
        ((RampPart(8, steps=2),), {}, ("data.batch_ramp[0].size", "followed by 8")),
        ((RampPart(4, steps=2),), {"parallel": {"islands": 2}}, ("data.batch_ramp", "islands")),
        (
            (RampPart(4, steps=2),),
            {"data": {"source": "stream", "path": "text", "tokenizer": "tokenizer"}},
            ("data.batch_ramp", "stream"),
        ),
    ],
)
def test_a_ramp_that_cannot_be_is_one_sentence(ramp, sections, parts):
    config = small(**sections)
    with refused(*parts):
        validate(replace(config, data=replace(config.data, batch_ramp=ramp)))


def test_a_size_that_the_mesh_does_not_split_is_refused(tmp_path: Path):
    with refused("data.batch_ramp: 2 rows are no multiple of the 4 data ranks; expected one"):
        make_run(ramped(tmp_path, 4, parallel={"fsdp": 4, "microbatches": 2}))
    with refused("data.batch_ramp: 6 rows are no multiple of the 4 of a microbatch", "is 4, over 2 data ranks"):
        make_run(ramped(tmp_path, 4, (RampPart(6, steps=1),), data={"batch_size": 16}, parallel=WIDE))

"""A run on several token folders reports their epochs, and notes weights that change between two starts."""

import json
from dataclasses import replace

import jax.numpy as jnp
import pytest

from jaxpar.checkpoint import Checkpointer, manifest
from jaxpar.checkpoint.digests import file_entries
from jaxpar.checkpoint.facts import FACTS
from jaxpar.checkpoint.manifest import MANIFEST
from jaxpar.config.schema.training import LaterSources
from jaxpar.observe.writers.jsonl import JsonLines, read_metrics
from jaxpar.training.run.progress import Progress
from jaxpar.training.run.saving import checkpoint_facts
from tests.data.folders import prepared, texts
from tests.sentences import refused
from tests.training.runs import MESH, fit, folder_of, losses, make_run, make_trainer, run_config


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("folders")
    for seed, name in enumerate("ab"):
        prepared(root / name, texts(300, seed), unit_bytes=10**6)
    return str(root / "a"), str(root / "b")


def config_of(tmp_path, steps, sources, **evaluation):
    return run_config(
        tmp_path,
        steps,
        parallel=MESH,
        model={"vocab": None},
        data={"source": "tokens", "sources": sources},
        checkpoint={"every": 2},
        evaluation=evaluation,
    )


@pytest.mark.long
def test_sources_go_on_where_they_were_when_their_weights_change(tmp_path, folders):
    a, b = folders
    first = config_of(tmp_path, 4, {a: 3.0, b: 1.0})
    rows = make_trainer(first).data.train
    summary, _ = fit(first)
    assert summary.epochs == rows.epochs(32)
    records = read_metrics(folder_of(first) / "metrics.jsonl")
    assert [record["epochs"] for record in records] == [rows.epochs(8 * step) for step in (1, 2, 3, 4)]

    changed = config_of(tmp_path, 8, {a: 1.0, b: 3.0})
    summary, recorded = fit(changed)
    planned_epochs = rows.epochs(32)
    weights = f"data.sources: {{{a}: 3.0, {b}: 1.0}} -> {{{a}: 1.0, {b}: 3.0}}"
    assert recorded.messages[:2] == [
        "The mixture changes from example 32 on, and each source continues where it was: epochs "
        + ", ".join(f"{path} {epochs:.3g}" for path, epochs in planned_epochs.items())
        + ".",
        f"Continuing with changes: run.steps: 4 -> 8; {weights}.",
    ]
    # 24 rows and 8, and then the other way round.
    for path in folders:
        assert summary.epochs[path] / (planned_epochs[a] / 24 if path == a else planned_epochs[b] / 8) == pytest.approx(
            32, abs=2
        )

    # A start that goes back to the checkpoint of step 6 repeats steps 7 and 8 as they were.
    before = losses(changed)
    (folder_of(changed) / "checkpoints" / "00000008" / MANIFEST).write_text("damaged")
    again = replace(changed, run=replace(changed.run, steps=10))
    _, recorded = fit(again)
    assert not [message for message in recorded.messages if message.startswith("The mixture")]
    after = losses(again)
    assert {step: after[step] for step in before} == before


def test_the_mixture_is_part_of_a_checkpoint(tmp_path, folders):
    a, b = folders
    run = make_run(config_of(tmp_path, 2, {a: 3.0, b: 1.0}))
    checkpointer = Checkpointer(tmp_path / "checkpoints", keep_last=1, keep_every=None, report=print)
    checkpointer.save(2, {"x": jnp.ones(3)}, checkpoint_facts(run, Progress(), 0))
    checkpointer.close()
    mixture = json.loads((tmp_path / "checkpoints" / "00000002" / FACTS).read_text())["mixture"]["phases"]
    (mixture,) = mixture
    assert mixture["first"] == 0 and sorted(mixture["weights"].values()) == [1.0, 3.0]


@pytest.mark.long
def test_a_run_keeps_the_order_that_it_began_with(tmp_path, folders):
    config = config_of(tmp_path, 2, {folders[0]: 1.0})
    fit(config)
    folder = folder_of(config) / "checkpoints" / "00000002"
    facts = json.loads((folder / FACTS).read_text())
    assert facts["shuffle"] == 3
    (folder / FACTS).write_text(json.dumps(facts | {"shuffle": 1}))
    # As a release left it that had the first order only.
    manifest.seal(folder, 2, file_entries(folder, manifest.unsealed(folder), flush=False))
    fit(replace(config, run=replace(config.run, steps=4)))
    assert json.loads((folder.with_name("00000004") / FACTS).read_text())["shuffle"] == 1


@pytest.mark.long
def test_a_run_from_the_optimizer_of_another_goes_on_in_its_data(tmp_path, folders):
    a, b = folders
    first = config_of(tmp_path / "first", 3, {a: 1.0})
    trainer = make_trainer(first)
    trainer._run.left_out = (1,)
    trainer.fit([JsonLines()])
    changed = config_of(tmp_path / "other", 5, {a: 1.0, b: 1.0})
    run = replace(changed.run, init_from=str(folder_of(first)), init_optimizer=True)
    _, recorded = fit(replace(changed, run=run))
    assert any("goes on after step 3" in text and "The mixture changes" in text for text in recorded.messages)
    fit(replace(changed, run=replace(changed.run, dir=str(tmp_path / "first"))))
    assert losses(changed) == {step: loss for step, loss in losses(first).items() if step > 3}


@pytest.mark.long
def test_other_changes_of_the_data_are_another_run(tmp_path, folders):
    a, b = folders
    fit(config_of(tmp_path, 2, {a: 1.0, b: 1.0}))
    alone = run_config(tmp_path, 4, parallel=MESH, model={"vocab": None}, data={"source": "tokens", "path": a})
    with refused("another configuration", "data.path: null -> ", "run.name"):
        fit(alone)


@pytest.mark.long
def test_planned_weights_and_epochs_are_continued_without_a_word(tmp_path, folders):
    a, b = folders
    changes = {"later_sources": (LaterSources(after=3, sources={b: 1.0}),), "max_epochs": {a: 0.1}}
    data = {"source": "tokens", "sources": {a: 3.0, b: 1.0}} | changes

    def config(folder, steps):
        of_one = config_of(folder, steps, {a: 1.0})
        return replace(of_one, data=replace(of_one.data, **data))

    fit(config(tmp_path / "at once", 6))
    fit(config(tmp_path / "twice", 4))
    _, recorded = fit(config(tmp_path / "twice", 6))
    assert not [message for message in recorded.messages if message.startswith("The mixture")]
    assert losses(config(tmp_path / "twice", 6)) == losses(config(tmp_path / "at once", 6))


def test_more_steps_than_epochs_are_refused(tmp_path, folders):
    a, b = folders
    config = config_of(tmp_path, 500, {a: 1.0, b: 1.0})
    config = replace(config, data=replace(config.data, max_epochs={a: 1.0, b: 1.0}))
    with refused("data.max_epochs", "rows in all", "run.steps (500)"):
        make_run(config)

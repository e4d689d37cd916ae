"""Keys under the names of other systems lead to ours, and all mistakes of a file are reported at once."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest

from jaxpar.config import UserError, load_config
from jaxpar.config.parts import OPTIMIZERS
from jaxpar.config.reading.aliases import ALIASES, MOVED, REMOVED, known_elsewhere
from jaxpar.config.reading.options import OPTIONS, record_of
from jaxpar.config.reading.sections import SECTIONS, keys_of
from jaxpar.layers.experts.clusters import Clustering
from jaxpar.layers.experts.routers import ROUTERS
from tests.sentences import refused

OURS = {f"{section}.{key}" for section in SECTIONS for key in keys_of(section)}


def test_every_name_leads_to_one_key_that_there_is_and_is_no_key_of_its_own_section():
    assert set(ALIASES) <= OURS | typed_keys()
    names = Counter(name for aliases in ALIASES.values() for name in aliases.split())
    assert [name for name, times in names.items() if times > 1] == []
    sections = {key: key.split(".")[0] for key in ALIASES}
    assert [n for key, names in ALIASES.items() for n in names.split() if f"{sections[key]}.{n}" in OURS] == []


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("optimizer.lr", "optimizer.learning_rate"),
        ("model.hidden_size", "model.embed"),
        ("model.num_hidden_layers", "model.layers"),
        ("model.vocab_size", "model.vocab"),
        ("model.num_attention_heads", "model.heads"),
        ("model.intermediate_size", "model.mlp"),
        ("model.tie_word_embeddings", "model.tied"),
        ("model.rope_theta", "model.rope.base"),
        ("model.rope_base", "model.rope.base"),
        ("model.partial_rotary_factor", "model.rope.partial"),
        ("parallel.tp", "parallel.tensor"),
        ("parallel.pp", "parallel.pipe"),
        ("run.save_every", "checkpoint.every"),
        ("training.global_batch_size", "data.batch_size"),
        ("max_steps", "run.steps"),
        ("run.seq-len", "data.sequence_length"),
        ("model.learning_rate", "optimizer.learning_rate"),
        ("model.layer", "layers"),
    ],
)
def test_a_key_of_another_system_or_section_or_spelling_gets_its_hint(tmp_path: Path, written: str, meant: str):
    section, _, key = written.rpartition(".")
    if section in SECTIONS:
        with refused(f"{written}:", "key", f" {meant}?"):
            load_config(None, [f"{written}=1"])
    elif not section:
        with refused(f"{written}:", "section", f" {meant}?"):
            load_config(None, [f"{written}=1"])
    assert known_elsewhere(key) == meant or section in SECTIONS


def typed_keys() -> set[str]:
    """The keys of mappings whose members stand beside what reads them."""
    options = {f"model.experts.router_options.{one.name}" for kind in ROUTERS.values() for one in fields(kind.options)}
    options |= {f"{OPTIONS}.{one.name}" for name in OPTIMIZERS for one in fields(record_of(name))}
    return options | {f"model.experts.clusters.{one.name}" for one in fields(Clustering)}


@pytest.mark.parametrize("old", MOVED)
def test_a_key_that_moved_is_refused_with_the_key_that_it_is_now(old: str, tmp_path: Path):
    """In a file and as an override, which name it alike; and there is such a key."""
    new, (mapping, _, name) = MOVED[old], old.partition(".")
    assert new in OURS | typed_keys()
    section = {"experts": "model", "overlap": "parallel", "matmul_except": "precision"}.get(mapping)
    if section is None:
        with refused(f"{old}:", new):
            load_config(None, [f"{old}=1"])
        return
    with refused(f"{section}.{mapping}", name, new):
        load_config(None, [f"{section}.{old}=1"])
    if mapping != "matmul_except":  # which is no key any more
        rest = "count: 4, " if mapping == "experts" else ""
        file = tmp_path / "config.yaml"
        file.write_text(f"{section}: {{{mapping}: {{{rest}{name}: 1}}}}")
        with refused(f"{section}.{mapping}", name, new):
            load_config(file)


@pytest.mark.parametrize("old", REMOVED)
def test_a_key_that_is_gone_is_refused_with_what_is_done_instead(old: str):
    with refused(f"{old}:", "no such key any more", REMOVED[old]):
        load_config(None, [f"{old}=1"])


def test_all_mistakes_of_a_file_are_reported_at_once_each_with_its_line(tmp_path: Path):
    file = tmp_path / "run.yaml"
    file.write_text("model:\n  hidden_size: 8\n  layers: many\noptimizer: {lr: 1.0}\ntraining:\n  steps: 5\nrun: 3\n")
    with pytest.raises(UserError) as refusal:
        load_config(file)
    wanted = [
        (":2: model.hidden_size:", " model.embed?"),
        (":3: model.layers:", "a whole number", "got 'many'"),
        (":4: optimizer.lr:", " optimizer.learning_rate?"),
        (":5: training:", "no such section"),
        (":7: run:", "a mapping of keys", "got 3"),
    ]
    for line, (place, *parts) in zip(str(refusal.value).splitlines(), wanted, strict=True):
        assert line.startswith(f"{file}{place}") and all(part in line for part in parts), line


def test_of_many_mistakes_the_first_are_reported_and_the_others_counted(tmp_path: Path):
    file = tmp_path / "run.yaml"
    file.write_text("run:\n" + "".join(f"  key{number}: 1\n" for number in range(25)))
    with pytest.raises(UserError) as refusal:
        load_config(file)
    lines = str(refusal.value).splitlines()
    assert len(lines) == 11 and lines[-1] == f"and 15 more mistakes in {file}"

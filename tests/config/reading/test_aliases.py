"""Keys under the names of other systems lead to ours, and all mistakes of a file are reported at once."""

from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest

from jaxpar.config import UserError, load_config
from jaxpar.config.mappings.experts import Clustering
from jaxpar.config.mappings.routers import ROUTERS
from jaxpar.config.parts import OPTIMIZERS
from jaxpar.config.reading.aliases import ALIASES, MOVED, REMOVED, key_of_other_system
from jaxpar.config.reading.options import OPTIONS, record_of
from jaxpar.config.reading.sections import SECTIONS, keys_of
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
        ("optimizer.lr", "optimizer.learning_rate"), ("model.hidden_size", "model.embed"),
        ("model.num_hidden_layers", "model.layers"), ("model.vocab_size", "model.vocab"),
        ("model.num_attention_heads", "model.heads"), ("model.intermediate_size", "model.mlp"),
        ("model.tie_word_embeddings", "model.tied"), ("model.rope_theta", "model.rope.base"),
        ("model.rope_base", "model.rope.base"), ("model.partial_rotary_factor", "model.rope.partial"),
        ("parallel.tp", "parallel.tensor"), ("parallel.pp", "parallel.pipe"), ("run.save_every", "checkpoint.every"),
        ("training.global_batch_size", "data.batch_size"), ("max_steps", "run.steps"),
        ("run.seq-len", "data.sequence_length"), ("model.learning_rate", "optimizer.learning_rate"),
        ("model.layer", "layers"),
    ],
)  # fmt: skip
def test_a_key_of_another_system_or_section_or_spelling_gets_its_hint(tmp_path: Path, written: str, meant: str):
    section, _, key = written.rpartition(".")
    if section in SECTIONS:
        with refused(f"{written}:", "key", f" {meant}?"):
            load_config(None, [f"{written}=1"])
    elif not section:
        with refused(f"{written}:", "section", f" {meant}?"):
            load_config(None, [f"{written}=1"])
    assert key_of_other_system(key) == meant or section in SECTIONS


def typed_keys() -> set[str]:
    """The keys of mappings whose members stand beside what reads them."""
    options = {f"model.experts.router_options.{one.name}" for kind in ROUTERS.values() for one in fields(kind)}
    options |= {f"{OPTIONS}.{one.name}" for name in OPTIMIZERS for one in fields(record_of(name))}
    return options | {f"model.experts.clusters.{one.name}" for one in fields(Clustering)}


@pytest.mark.parametrize("old", [*MOVED, "data.heldout.web"])
def test_a_key_that_moved_is_refused_with_the_key_that_it_is_now(old: str, tmp_path: Path):
    new, (mapping, _, name) = MOVED.get(old) or MOVED[old.rpartition(".")[0]], old.partition(".")
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


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("optimizer:\n  name: muon\n  options: {momentums: 0.9}\n",
         (":3: optimizer.options:", "momentums", " momentum?")),
        ("optimizer:\n  options:\n    beta1: fast\n", (":2: optimizer.options.beta1:", "a number", "got 'fast'")),
        ("optimizer: {options: {beta2: 1.5}}\n", (":1: optimizer.options.beta2:", "from 0 to below 1", "got 1.5")),
        ("model:\n  layers: 2\n  experts: {count: 8, router: sigmoid, router_options: {bias_rat: 1}}\n",
         (":3: model.experts.router_options:", "bias_rat", " bias_rate?")),
        ("model:\n  experts: {count: 8, router: sam, router_options: {groups: 0}}\n",
         (":2: model.experts.router_options.groups:", "at least 1", "got 0")),
        ("model:\n  experts: {count: 8, clusters: {shares: 0.5}}\n",
         (":2: model.experts.clusters:", "shares", " share?")),
        ("precision:\n  matmul_options: {history: 0}\n", (":2: precision.matmul_options.history:", "at least 1")),
        ("run:\n  steps: 0\n", (":2: run.steps:", "at least 1", "got 0")),
    ],
)  # fmt: skip
def test_a_mistake_in_a_mapping_that_another_key_decides_has_its_line_too(tmp_path: Path, text: str, parts):
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with refused(f"{file}{parts[0]}", *parts[1:]):
        load_config(file)


def test_an_override_may_name_the_optimizer_whose_options_a_file_has(tmp_path: Path):
    file = tmp_path / "run.yaml"
    file.write_text("optimizer: {options: {momentum: 0.5}}\n")
    optimizer = load_config(file, ["optimizer.name=muon"]).optimizer
    assert (optimizer.name, optimizer.options) == ("muon", {"momentum": 0.5})


def test_of_many_mistakes_the_first_are_reported_and_the_others_counted(tmp_path: Path):
    file = tmp_path / "run.yaml"
    file.write_text("run:\n" + "".join(f"  key{number}: 1\n" for number in range(25)))
    with pytest.raises(UserError) as refusal:
        load_config(file)
    lines = str(refusal.value).splitlines()
    assert len(lines) == 11 and lines[-1] == f"and 15 more mistakes in {file}"

"""The reference page and `--help` say what the schema says, and cost no import of JAX."""

from pathlib import Path

from jaxpar.config.presets import PRESETS
from jaxpar.config.reading.reference import entries, help_text
from jaxpar.config.reading.sections import SECTIONS, keys_of
from jaxpar.layers.declared import activation_names, known_activations
from jaxpar.layers.reference import page
from tests.processes import run_python

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "configuration.md"


def test_the_page_is_what_the_schema_would_write_today():
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "stale: run `python -m jaxpar.layers.reference > docs/configuration.md`"
    )


def test_every_key_is_explained_on_the_page_and_in_the_help():
    on_page, in_help = page(), help_text()
    for section in SECTIONS:
        explained = {entry.key: entry for entry in entries()[section]}
        assert list(explained) == [f"{section}.{key}" for key in keys_of(section)]
        for key, entry in explained.items():
            assert len(entry.meaning) > 10
            assert f"`{key}`" in on_page and f"  {key}={entry.default} " in in_help


def test_the_names_of_all_activations_are_on_both_pages():
    reference = next(entry.meaning for entry in entries()["memory"] if entry.key == "memory.remat")
    memory = (DOCS / "memory.md").read_text(encoding="utf-8").partition("| activation |")[2].partition("\n## ")[0]
    names = {*known_activations(), *(name for model in PRESETS.values() for name in activation_names(model))}
    for expected in (reference, memory):
        assert [name for name in sorted(names) if f"`{name}`" not in expected] == []


def test_an_entry_gives_type_range_and_default():
    heads = next(entry for entry in entries()["model"] if entry.key == "model.kv_heads")
    assert (heads.kind, heads.default) == ("integer >= 1, or null", "null")


def test_the_configuration_is_imported_without_jax_in_under_a_second():
    program = (
        "import sys, time\n"
        "import jaxpar.config, jaxpar.config.plan, jaxpar.config.reading.reference, jaxpar.config.validate\n"
        "jaxpar.config.reading.reference.help_text()\n"
        "heavy = {'jax', 'numpy', 'flax'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert time.process_time() < 1, time.process_time()\n"
    )
    done = run_python("-c", program)
    assert done.returncode == 0, done.stderr

"""The reference page and `--help` say what the schema says, and cost no import of JAX."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from jaxpar.config.reference import entries, help_text
from jaxpar.config.sections import SECTIONS
from jaxpar.config.typed import field_types
from jaxpar.layers.reference import page

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_what_the_schema_would_write_today():
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "stale: run `python -m jaxpar.layers.reference > docs/configuration.md`"
    )


def test_every_key_is_explained_on_the_page_and_in_the_help():
    for section, record in SECTIONS.items():
        explained = {entry.key: entry for entry in entries()[section]}
        assert list(explained) == [f"{section}.{key}" for key in field_types(record)]
        for key, entry in explained.items():
            assert len(entry.meaning) > 10
            assert f"`{key}`" in page() and f"  {key}={entry.default} " in help_text()


def test_an_entry_gives_type_range_and_default():
    heads = next(entry for entry in entries()["model"] if entry.key == "model.kv_heads")
    assert (heads.kind, heads.default) == ("a whole number, at least 1, at most 2^24, or null", "null")


def test_the_configuration_is_imported_without_jax_in_under_a_second():
    program = (
        "import sys, time\n"
        "import jaxpar.config, jaxpar.config.plan, jaxpar.config.reference, jaxpar.config.validate\n"
        "jaxpar.config.reference.help_text()\n"
        "heavy = {'jax', 'numpy', 'flax'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert time.process_time() < 1, time.process_time()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

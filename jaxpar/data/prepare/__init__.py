"""The command that tokenizes text into a token folder: `python -m jaxpar.prepare`. See `docs/data.md`.

The inputs are cut into units (`input/units.py`) that depend on the inputs alone. Worker processes make each unit's
tokens (`output/tokenize.py`) and put the units together as shards (`output/shards.py`). Every piece of work appears by
a rename, so a kill loses only the pieces in progress, and the output is the same for any number of processes.
"""

from jaxpar.data.prepare.inspection import inspect_folder
from jaxpar.data.prepare.options import Options
from jaxpar.data.prepare.run import prepare
from jaxpar.data.prepare.spans import mark_spans
from jaxpar.data.prepare.triples import mark_triples
from jaxpar.data.prepare.verification import verify_folder

__all__ = ["Options", "inspect_folder", "mark_spans", "mark_triples", "prepare", "verify_folder"]

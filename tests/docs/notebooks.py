"""Runs the notebooks of `docs/notebooks`, each in a kernel of its own.

`python -m tests.docs.notebooks [name]` runs them and writes what they print and draw into them, to be committed.
"""

import hashlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.patience import seconds

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NAMES = ("quickstart", "finetune")
PATIENCE_S = seconds(600)

OURS = ("JAX_PLATFORMS", "XLA_FLAGS")
"""Variables of the tests that a reader does not have."""


def sources(notebook: Any) -> str:
    """A digest of the code, which the outputs belong to."""
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256("\n---\n".join(code).encode()).hexdigest()[:16]


def read(name: str) -> Any:
    """A notebook as it is committed."""
    import nbformat

    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def execute(name: str, home: Path) -> Any:
    """A notebook with the outputs of running it here, in its own folder, from the first cell to the last.

    `home` stands for the home of somebody who never ran it. Raises nbclient's `CellExecutionError` when a cell raises.
    """
    import matplotlib
    from nbclient import NotebookClient

    notebook = read(name)
    root = str(FOLDER.parents[1])
    environment = {key: value for key, value in os.environ.items() if key not in OURS}
    environment |= {
        "HOME": str(home),
        "MPLCONFIGDIR": matplotlib.get_cachedir(),  # it would look for fonts again
        "PYTHONPATH": os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH")))),
        # The light GPU compiler, which is in the environment of the tests, would speak about drivers.
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    folder = {"metadata": {"path": str(FOLDER)}}
    client = NotebookClient(
        notebook,
        timeout=int(PATIENCE_S),
        kernel_name="python3",
        resources=folder,
        extra_arguments=["--log-level=ERROR"],  # it would warn that it is heard on a port of this machine
    )
    client.execute(env=environment)
    return notebook


def write(name: str) -> None:
    """Run a notebook and keep its outputs, but for what changes from run to run without meaning anything."""
    import nbformat

    with tempfile.TemporaryDirectory() as home:
        notebook = execute(name, Path(home))
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            cell.metadata = {}
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "sources": sources(notebook),
    }
    nbformat.write(notebook, FOLDER / f"{name}.ipynb")


if __name__ == "__main__":
    for wanted in sys.argv[1:] or NAMES:
        write(wanted)
        print(FOLDER / f"{wanted}.ipynb")

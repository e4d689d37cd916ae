"""Make the fixtures again: `python -m tests.compiler.program.generate`.

It runs under the versions of JAX and its CUDA plugin that are installed, and needs no more than these; its files
carry JAX's version in their names.
"""

import gzip
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
DUMPS = {"buffers": "-buffer-assignment.txt", "live": "-live-range.txt"}
AFTER = "*gpu_after_optimizations"


def tiny() -> None:
    """The texts that XLA writes for `tiny_step`."""
    from importlib.metadata import version

    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "tests.compiler.program.tiny_step", folder], cwd=ROOT, check=True)
        (memory,) = Path(folder).glob("memory.json")
        texts = {"program": (Path(folder) / "program.txt").read_text()}
        for name, ending in DUMPS.items():
            path = min((Path(folder) / "dump").glob(AFTER + ending))  # and the same of the compile without machine code
            texts[name] = path.read_text()
        _keep(f"tiny-{version('jax')}", texts, json.loads(memory.read_text()))


def _keep(name: str, texts: dict[str, str], memory: dict[str, int]) -> None:
    for part, text in texts.items():
        plain = re.sub(r'"[^"\n]*/site-packages/', '"', text.replace(f"{ROOT}/", "")).encode()
        (HERE / "fixtures" / f"{name}.{part}.txt.gz").write_bytes(gzip.compress(plain, 9, mtime=0))
    (HERE / "fixtures" / f"{name}.memory.json").write_text(json.dumps(memory, indent=1) + "\n")


if __name__ == "__main__":
    tiny()

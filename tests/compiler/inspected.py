"""Small steps compiled for clusters of H100s, each once per process, with their reports."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from jaxpar.compiler.compile import compile_step
from jaxpar.compiler.report import Analysis, Report, make_report
from jaxpar.config import Config, load_config
from jaxpar.hardware.cluster import parse_cluster
from tests.small_run import small

CACHE = Path(tempfile.mkdtemp(prefix="jaxpar-inspected-"))
"""Where compiles of this process are kept, so that a command can be tried on a step that is compiled already."""
atexit.register(shutil.rmtree, CACHE, ignore_errors=True)

CLUSTER = "h100:2x4"

YAML = """
model: {layers: 4, embed: 128, heads: 8, kv_heads: 8, mlp: 256, vocab: 512}
parallel: {replica: -1, fsdp: 4, zero: 3, microbatches: 2}
attention: {backend: blockwise}
data: {source: synthetic, sequence_length: 64, batch_size: 16}
"""
"""The step that most tests look at: HSDP over two hosts of four GPUs."""


def wide(**sections: dict[str, Any]) -> Config:
    """`small` with matrices that XLA leaves to cuBLAS, in bfloat16."""
    sections["model"] = {"layers": 4, "embed": 128, "mlp": 256, "vocab": 512} | sections.get("model", {})
    sections["attention"] = {"backend": "blockwise"} | sections.get("attention", {})
    sections["precision"] = {"compute": "bfloat16"} | sections.get("precision", {})
    sections["data"] = {"sequence_length": 64, "batch_size": 16} | sections.get("data", {})
    return small(**sections)


def inspected(config: Config, cluster: str = CLUSTER) -> tuple[Analysis, Report]:
    """Compile and read."""
    where = parse_cluster(cluster)
    analysis = Analysis(compile_step(config, where, cache=CACHE), where)
    return analysis, make_report(analysis, "small")


@cache
def hsdp() -> tuple[Analysis, Report]:
    """The step of `YAML`."""
    file = CACHE / "hsdp.yaml"
    file.write_text(YAML)
    return inspected(load_config(file))

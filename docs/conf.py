"""The site, made by Sphinx of the pages of docs/ and of the root: `make site` builds it into build/site.

A link or an anchor that leads nowhere is an error, and so is a page that `NAV` does not list.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from jaxpar.compiler.quiet import quiet_imports  # noqa: E402

quiet_imports()

NAV = {
    "Get started": (
        "install", "first-run", "Your text <data>", "streaming", "Your model <models>", "Your cluster <clusters>",
    ),
    "Guides": (
        "planner", "inspect", "cluster-files", "parallelism", "memory", "long-context", "attention", "hybrids",
        "spikingbrain", "pipelines", "experts", "fp8", "zeropp", "islands", "island-jobs", "low-rank", "weights",
        "chat-recipe", "fine-tune", "reinforcement", "asynchronous-rl", "environments", "conversations", "mixing",
        "objectives", "paris", "generate", "serving", "evaluation", "python", "checkpoints", "operations", "warnings",
        "reports", "network", "object-stores", "Extend jaxpar <extending>",
    ),
    "Reference": ("configuration", "families", "commands", "api", "special-tokens", "glossary"),
    "How it works": (
        "architecture", "Memory <memory-model>", "Overlap <overlap>", "experts-exchange", "routers", "schedules",
        "kernels", "Linear attention <linear-attention>", "Step times <predictions>",
    ),
    "Results": (
        "benchmarks", "measured-on-cpus", "Predictions <prediction-errors>", "Islands <islands-results>",
    ),
    "Decisions": ("decisions", "../ROADMAP", "../CHANGELOG"),
    "Contribute": ("../CONTRIBUTING", "testing", "../tests/README"),
}  # fmt: skip
"""Pages of docs/, without their ending, by heading of the navigation; `Title <page>` shortens a title."""

project = "jaxpar"
html_title = "jaxpar"
html_theme = "furo"
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "tests/README.md"]
exclude_patterns = [".*", "build", "jaxpar", "runs"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4
pygments_style = "friendly"
highlight_language = "none"  # of blocks that name no language
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_use_ivar = True
napoleon_custom_sections = [("Methods", "params_style")]  # a list in the text: each method has an entry beside it


def add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Add the navigation to the first page, whose text on disk is that of the repository."""
    if page == root_doc:
        for caption, pages in NAV.items():
            lines = "\n".join(re.sub(r"([./\w-]+)(>?)$", r"/docs/\1\2", name) for name in pages)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{lines}\n```\n"


def write_index(app: Sphinx, error: Exception | None) -> None:
    """Write index.html, which web servers show for the site's address, and which leads to the first page."""
    page = f'<!doctype html><meta http-equiv="refresh" content="0; url={root_doc}.html">'
    Path(app.outdir, "index.html").write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Connect what Sphinx calls while it reads, and when it has written."""
    app.connect("source-read", add_navigation)
    app.connect("build-finished", write_index)

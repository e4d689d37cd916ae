"""What may rest on the host is what the cluster's hosts have, or what the configuration allows of it."""

from pathlib import Path

from jaxpar.planner.report.text import host_words
from tests.planner.spaces import model_of, search_of
from tests.sentences import refused

GIB = 2**30
NEEDS_HOST = int(1.6 * GIB)
"""Bytes of a device into which the model goes with its optimizer's state on the host, 1.3 GiB, and not without."""
MODEL = {"activation": "gelu"}


def cluster(folder: Path, host_memory: float) -> str:
    file = folder / "mine.yaml"
    file.write_text(f"gpu: h100\nhosts: 1\ngpus_per_host: 1\nhost_memory: {host_memory}\n")
    return str(file)


def test_a_layout_that_needs_the_host_states_how_much_and_of_what(tmp_path: Path):
    best = search_of(model_of(model=MODEL), cluster(tmp_path, 1.5), NEEDS_HOST).best(1)[0]
    assert best.candidate.layout.optimizer_offload
    assert all(part in host_words(best) for part in ("1.3 GiB", "1.5 GiB", "host_memory"))
    asked = model_of(model=MODEL, memory={"host_limit": 2 * GIB})
    best = search_of(asked, cluster(tmp_path, 1.0), NEEDS_HOST).best(1)[0]
    assert all(part in host_words(best) for part in ("1.3 GiB", "2.0 GiB", "memory.host_limit"))


def test_hosts_that_are_too_small_are_named_with_what_is_needed(tmp_path: Path):
    """Besides the state that stays on the GPU, in what the other parts of a step leave of it."""
    config = model_of(model=MODEL)
    with refused("at least 1.3 GiB", "512.0 MiB", "memory.host_limit", "fit 2 GPUs"):
        search_of(config, cluster(tmp_path, 0.5), NEEDS_HOST).best(1)

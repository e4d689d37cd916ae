"""`convert upcycle`: at first a model with experts computes what its dense model computes."""

from pathlib import Path

import numpy as np
import pytest

from jaxpar.convert import main
from jaxpar.interop.sources.open_source import open_source
from jaxpar.interop.sources.source import check_fits
from jaxpar.training.run.reference import initial_state_from
from tests.goldens.loading import FOLDER, tokens_and_logits
from tests.model.test_goldens import logits
from tests.reference.decoder64 import plain_batch
from tests.sentences import refused_by_command
from tests.small_run import SmallRun, small
from tests.training.run.test_init_from import model_of


def upcycle(*arguments: object) -> int:
    """The exit code of the command."""
    return main(["upcycle", *map(str, arguments)])


CASES = {
    "copies": ("llama", (4,), {"count": 4, "per_token": 2, "width": None}),
    "slices": ("llama", (2, "--granularity", 4), {"count": 8, "per_token": 8}),
    "slices of one copy": ("llama", (3, "--granularity", 2, "--per-token", 2), {"count": 6, "per_token": 2}),
    "kinds of layers": ("gemma2", (2,), {"count": 2, "per_token": 2}),
}


@pytest.mark.matrix(quick=("slices of one copy",), ci=1)
@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_the_dense_model(name: str, tmp_path: Path):
    family, (copies, *options), wanted = CASES[name]
    assert upcycle(FOLDER / family, tmp_path / "out", "--experts", copies, *options) == 0
    source = open_source(tmp_path / "out", "MODEL")
    experts = source.model.experts
    assert experts is not None and experts.router == "top_k_softmax"
    assert wanted.items() <= vars(experts).items()
    tokens, theirs = tokens_and_logits(family)
    section = model_of(FOLDER / family, experts=experts)
    run = SmallRun(small(model=section, data={"sequence_length": tokens.shape[1], "batch_size": len(tokens)}))
    check_fits(source, run.config.model, "MODEL")
    residency = run.step.residency
    state = initial_state_from(source, residency.initial_state(), residency)
    ours = np.asarray(logits(run.step)(state.master, run.place(plain_batch(tokens))))[..., : theirs.shape[-1]]
    assert np.abs(ours - theirs).max() <= 1e-4 * np.abs(theirs).max()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["llama"], ("--experts", "upcycle")),
        (["llama", "--experts", 4, "--granularity", 5], ("--granularity", "5", "hidden width")),
        (["llama", "--experts", 4, "--granularity", 2, "--per-token", 3], ("--per-token", "multiple", "2", "3")),
        (["llama", "--experts", 2, "--per-token", 3], ("--per-token", "at most 2", "3")),
        (["gpt2", "--experts", 2], ("MODEL", "biases")),
        (["mixtral", "--experts", 2], ("MODEL", "experts already", "dense")),
    ],
)
def test_what_cannot_be_upcycled_is_one_sentence(arguments: list[object], parts: tuple[str, ...], tmp_path, capfd):
    folder, *options = arguments
    status = upcycle(FOLDER / str(folder), tmp_path / "out", *options)
    refused_by_command(status, *capfd.readouterr(), *parts)
    assert not (tmp_path / "out").exists()

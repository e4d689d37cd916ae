"""A model whose mixers forget learns less than a hybrid."""

from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.hybrid import forgetful
from benchmarks.hybrid.__main__ import CONFIG, CONTROL, DENSE, HYBRID, MODELS, loss_of
from jaxpar.config import load_config
from jaxpar.config.parts import MIXERS
from jaxpar.layers.counting import parameter_count

MARGIN = 0.3
"""Nats a byte. After 100 steps of the study it is 0.8 (docs/hybrids.md)."""
ONE_DEVICE = {"parallel.fsdp": 1, "parallel.context": 1, "data.batch_size": 4}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_hybrid_whose_mixers_forget_is_clearly_worse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(MIXERS, forgetful.NAME, forgetful.ENTRY)
    monkeypatch.delenv("XLA_FLAGS")  # which make eight devices here
    options = Namespace(folder=tmp_path, steps=50)
    hybrid, control = (loss_of(options, name, 0, **ONE_DEVICE) for name in (HYBRID, CONTROL))
    assert hybrid < control - MARGIN


def test_models_have_as_many_parameters(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(MIXERS, forgetful.NAME, forgetful.ENTRY)
    dense, hybrid, control = (
        parameter_count(
            load_config(CONFIG, ["model.vocab=257", *(f"{key}={value}" for key, value in MODELS[name].items())]).model,
            padded=False,
        )
        for name in (DENSE, HYBRID, CONTROL)
    )
    assert hybrid == control and abs(dense / hybrid - 1) < 2e-3

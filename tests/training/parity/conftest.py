"""Small models offload what large ones would."""

import pytest

from jaxpar.memory import fraction


@pytest.fixture(autouse=True)
def small_arrays_are_offloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fraction, "STAYS_BELOW", 1)

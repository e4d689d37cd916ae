"""State that passes to the host and back in small pieces."""

import pytest

from jaxpar.memory import streaming


@pytest.fixture
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small weights pass in several pieces too."""
    monkeypatch.setattr(streaming, "PIECE_BYTES", 3000)

"""That `refused` fails where a message is not what it should be."""

import pytest

from jaxpar.checkpoint import CheckpointError
from jaxpar.config.errors import UserError
from tests.sentences import refused, refused_by_command


def test_a_message_with_all_parts_passes_in_any_order_and_is_handed_back():
    with refused("[8]", "model.heads") as caught:
        raise CheckpointError("model.heads: expected one of [8], got 7")
    assert "got 7" in str(caught.value)


@pytest.mark.parametrize("message", [("heads: got 7",), ("model.heads: got 8",), ("model.heads: got 7", "and more")])
def test_another_message_fails(message: tuple[str, ...]):
    with pytest.raises(AssertionError), refused("model.heads", "7"):
        raise UserError(*message)


def test_a_grid_stands_below_the_line_that_has_the_parts():
    with refused("1B1 is missing", error=ValueError, grid=True):
        raise ValueError("1B1 is missing on rank 1\nrank 0 | 0F0 0B0")
    for message in ("1B1 is missing", "missing\n1B1 is missing"):
        with pytest.raises(AssertionError), refused("1B1 is missing", error=ValueError, grid=True):
            raise ValueError(message)


def test_another_error_or_none_fails():
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"), refused("model.heads"):
        pass
    with pytest.raises(ValueError, match=r"model\.heads"), refused("model.heads"):
        raise ValueError("model.heads")
    with pytest.raises(AssertionError), refused():
        raise UserError("model.heads")


@pytest.mark.parametrize(
    ("status", "out", "errors"),
    [
        (1, "", "jaxpar: --steps: got 5\n"), (2, "step 1\n", "jaxpar: --steps: got 5\n"), (2, "", "--steps: got 5\n"),
        (2, "", "jaxpar: --steps: got 5\nand more\n"), (2, "", "jaxpar: --step: got 5\n"),
    ],
)  # fmt: skip
def test_a_command_that_refuses_in_another_form_fails(status: int, out: str, errors: str):
    assert refused_by_command(2, "", "jaxpar: --steps: got 5\n", "--steps", "5") == "jaxpar: --steps: got 5"
    with pytest.raises((AssertionError, ValueError)):
        refused_by_command(status, out, errors, "--steps", "5")

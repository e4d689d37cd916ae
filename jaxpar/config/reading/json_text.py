"""JSON that a user may have written: anything wrong with it becomes a one-sentence error."""

from __future__ import annotations

import json
from typing import Any

from jaxpar.config.errors import UserError


def parse_json(text: str, source: str, *, unique: bool = False) -> Any:
    """The value of a JSON text.

    Args:
        text: the text.
        source: its name in messages.
        unique: refuse names that appear twice in a mapping, of which JSON silently takes the last.

    Raises:
        UserError: the text is not JSON, nests too deep, or has a number of thousands of digits.
    """

    def without_doubles(pairs: list[tuple[str, object]]) -> dict[str, object]:
        made: dict[str, object] = {}
        for name, value in pairs:
            if name in made:
                raise UserError(f"{source}: {name} appears twice")
            made[name] = value
        return made

    try:
        return json.loads(text, object_pairs_hook=without_doubles if unique else None)
    except json.JSONDecodeError as error:
        raise UserError(f"{source}:{error.lineno}: not valid JSON ({error.msg})") from None
    except RecursionError:
        raise UserError(f"{source}: not usable JSON (it nests too deep)") from None
    except UserError:
        raise
    except ValueError:  # Python reads no whole number of more than 4300 digits
        raise UserError(f"{source}: not usable JSON (it has a number of thousands of digits)") from None

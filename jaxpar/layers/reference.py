"""The reference of the configuration with the sizes of its presets: `docs/configuration.md`.

`python -m jaxpar.layers.reference > docs/configuration.md` writes the page.
"""

from __future__ import annotations

from jaxpar.config.presets import PRESETS
from jaxpar.config.reading.reference import markdown
from jaxpar.layers.counting import parameter_count


def page() -> str:
    """Returns the text of the page."""
    return markdown({name: parameter_count(model, padded=False) for name, model in PRESETS.items()})


if __name__ == "__main__":
    print(page(), end="")

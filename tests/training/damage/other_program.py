"""Training from the command line, where process 1 alone has code that reckons the norm of the gradients otherwise."""

import os
import sys
from typing import Any

import jax

from jaxpar.train import main
from jaxpar.training.residency import on_device

_squares = on_device.squares


def _other(*arguments: Any, **options: Any) -> Any:
    found = _squares(*arguments, **options)
    return found if jax.process_index() == 0 else jax.tree.map(lambda value: 2.0 * (0.5 * value), found)


if __name__ == "__main__":
    on_device.squares = _other
    if "distributed.process_id=1" in sys.argv:
        os.environ["XLA_FLAGS"] += " --xla_dump_hlo_as_text=false"
    sys.exit(main(sys.argv[1:]))

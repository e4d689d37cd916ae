"""Training from the command line, where only process 0 may look at its clock."""

import sys

import jax

from jaxpar.train import main
from jaxpar.training.run_folder.save_clock import SaveClock

_decide = SaveClock._decide


def _of_process_0(self: SaveClock, step: int) -> tuple[bool, int]:
    assert jax.process_index() == 0, "this process decides by itself"
    return _decide(self, step)


if __name__ == "__main__":
    SaveClock._decide = _of_process_0
    sys.exit(main(sys.argv[1:]))

"""Training from the command line, where process 1 alone has code that computes otherwise what OTHER names: the norm of
the gradients in a step, an evaluation, or the tokens of generation."""

import os
import sys
from collections.abc import Callable
from typing import Any

import jax

from jaxpar.generation.functions import GenerationFunctions
from jaxpar.train import main
from jaxpar.training.residency import on_device
from jaxpar.training.step.forward_backward import StepFunctions

OTHER = {"a step": (on_device, "squares"), "an evaluation": (StepFunctions, "evaluate")}
OTHER["generation"] = GenerationFunctions, "decode"


def _other(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        found = function(*arguments, **options)
        twice_half = lambda value: 2.0 * (0.5 * value) if value.dtype.kind == "f" else value
        return found if jax.process_index() == 0 else jax.tree.map(twice_half, found)

    return call


if __name__ == "__main__":
    where, name = OTHER[os.environ["OTHER"]]
    setattr(where, name, _other(getattr(where, name)))
    if "distributed.process_id=1" in sys.argv:
        os.environ["XLA_FLAGS"] += " --xla_dump_hlo_as_text=false"
    sys.exit(main(sys.argv[1:]))

"""Training from the command line, where process 1 alone has a record of a kernel of linear attention."""

import sys
from dataclasses import replace
from typing import Any

import jax

from jaxpar.config.plan import Choice, Plan
from jaxpar.train import main
from jaxpar.training.run import setup

_make_plan = setup.make_plan


def _with_record(*arguments: Any) -> Plan:
    plan = _make_plan(*arguments)
    return plan if jax.process_index() == 0 else replace(plan, linear_attention={"mixer": Choice("mosaic", "recorded")})


if __name__ == "__main__":
    setup.make_plan = _with_record
    sys.exit(main(sys.argv[1:]))

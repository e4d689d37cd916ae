"""The table of residuals from which the planner's intervals follow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256

from benchmarks.validation.fit import CURRENT
from benchmarks.validation.mechanisms import GENERATIONS
from benchmarks.validation.published import PUBLISHED
from jaxpar.planner.step_time.interval import Spread


def inputs() -> str:
    """A hash of what the residuals follow from: the published runs, the fitted parameters and the mechanisms."""
    return sha256(PUBLISHED.read_bytes() + repr((CURRENT, GENERATIONS)).encode()).hexdigest()


def residuals_text(spreads: Mapping[str, Spread]) -> str:
    """The file of spreads by what is known of the software, in logarithms of seconds."""
    rounded = {
        name: {"between": round(one.between, 3), "within": round(one.within, 3), "quantile": round(one.quantile, 2)}
        for name, one in spreads.items()
    }
    written_by = "python -m benchmarks.validation --write"
    return json.dumps({"written_by": written_by, "inputs": inputs(), "spreads": rounded}, indent=2) + "\n"

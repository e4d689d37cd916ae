"""Faults that somebody could make, each one replacement in the code, and the tests that must notice it."""

from __future__ import annotations

from tests.faults.communication import COMMUNICATION
from tests.faults.kinds import KINDS
from tests.faults.layers import LAYERS
from tests.faults.loss import LOSS
from tests.faults.memory import MEMORY
from tests.faults.pipeline import PIPELINE
from tests.faults.plan import PLAN
from tests.faults.planner import PLANNER
from tests.faults.prepared import PREPARED
from tests.faults.tokens import TOKENS
from tests.faults.update import UPDATE

FAULTS = (*COMMUNICATION, *LOSS, *TOKENS, *LAYERS, *UPDATE, *PREPARED, *PIPELINE, *MEMORY, *KINDS, *PLANNER, *PLAN)

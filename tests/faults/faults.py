"""Faults that somebody could make, each one replacement in the code, and the tests that must notice it."""

from tests.faults.catalogue.communication import COMMUNICATION
from tests.faults.catalogue.composed import COMPOSED
from tests.faults.catalogue.experts import EXPERTS
from tests.faults.catalogue.generation import GENERATION
from tests.faults.catalogue.hybrids import HYBRIDS
from tests.faults.catalogue.islands import ISLANDS
from tests.faults.catalogue.kinds import KINDS
from tests.faults.catalogue.layers import LAYERS
from tests.faults.catalogue.loss import LOSS
from tests.faults.catalogue.memory import MEMORY
from tests.faults.catalogue.pipeline import PIPELINE
from tests.faults.catalogue.plan import PLAN
from tests.faults.catalogue.planner import PLANNER
from tests.faults.catalogue.precision import PRECISION
from tests.faults.catalogue.prepared import PREPARED
from tests.faults.catalogue.tokens import TOKENS
from tests.faults.catalogue.update import UPDATE

FAULTS = (
    COMMUNICATION + LOSS + TOKENS + LAYERS + UPDATE + PREPARED + PIPELINE + MEMORY + GENERATION + HYBRIDS + ISLANDS
    + KINDS + EXPERTS + COMPOSED + PLANNER + PLAN + PRECISION
)  # fmt: skip

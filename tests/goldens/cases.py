"""Cases of the goldens that `generate.py` makes: for each, a class of transformers and its small configuration."""

from tests.goldens.dense_cases import DENSE
from tests.goldens.expert_cases import EXPERTS
from tests.goldens.hybrid_cases import HYBRIDS

CASES = DENSE | EXPERTS | HYBRIDS
"""The class of transformers and the options of its configuration, by the name of the golden."""

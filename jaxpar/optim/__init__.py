"""Update rules on sharded weights, learning-rate schedules, and clipping by the true global norm."""

from jaxpar.optim.norm import clip, global_norm, squares, squares_layout
from jaxpar.optim.optimizer import Optimizer, OptimizerState, WeightOptimizer, make_optimizer
from jaxpar.optim.schedule import learning_rate, muon_learning_rate

__all__ = [
    "Optimizer",
    "OptimizerState",
    "WeightOptimizer",
    "clip",
    "global_norm",
    "learning_rate",
    "make_optimizer",
    "muon_learning_rate",
    "squares",
    "squares_layout",
]

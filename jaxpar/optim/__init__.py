"""Update rules on sharded weights, learning-rate schedules, and clipping by the true global norm."""

from jaxpar.optim.arguments import OptimizerArguments, optimizer_arguments
from jaxpar.optim.norm import clip, global_norm, squares, squares_layout
from jaxpar.optim.optimizer import Optimizer, OptimizerState, WeightOptimizer, make_optimizer

__all__ = [
    "Optimizer",
    "OptimizerArguments",
    "OptimizerState",
    "WeightOptimizer",
    "clip",
    "global_norm",
    "make_optimizer",
    "optimizer_arguments",
    "squares",
    "squares_layout",
]

"""The state that islands share in pinned host memory: rows pass through the device where islands exchange them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, wraps

import jax
import numpy as np
from jaxtyping import PyTree

from jaxpar.layout.islands import OUTER_MOMENTUM, with_outer_state
from jaxpar.layout.state import TrainState
from jaxpar.layout.step_arguments import StepArguments
from jaxpar.layout.step_options import cpu_options
from jaxpar.memory.streaming import fetched_rows, is_on_host, rows_of_piece, to_host
from jaxpar.mesh.parameters import Weights, subtree_like
from jaxpar.training.residency.on_device import OnDevice
from jaxpar.training.residency.weight_update import CompiledStep


class OuterOnHost(OnDevice):
    """The weights of islands and the state of their optimizers on the device, and the outer state in host memory."""

    # ---- inside the map

    def here(self, master: Weights) -> Weights:
        """Weights on the device: evaluation reads the global ones, in storage dtype; those of an island are there."""
        fetch = lambda a, dtype: fetched_rows(a, dtype, rows_of_piece(a)) if is_on_host(a) else a
        return jax.tree.map(fetch, master, subtree_like(self.layout.placements.storage_dtypes, master))

    # ---- outside

    @cached_property
    def _initial(self) -> Callable[[StepArguments], TrainState]:
        """Three steps, so that the device never has the outer state beside all else."""
        places, options = self.layout.state_shardings(self.mesh), cpu_options(self.mesh)
        compiled = lambda make, where: (
            jax.jit(make, out_shardings=where, compiler_options=options).lower(self.layout.arguments).compile()
        )
        without = lambda state: state._replace(
            master=None, optimizer={name: tree for name, tree in state.optimizer.items() if name != OUTER_MOMENTUM}
        )
        rest = compiled(lambda arguments: without(self.layout.initial_state(arguments)), without(places))
        weights = compiled(lambda arguments: self.layout.initial_state(arguments).master, places.master)
        zeros = lambda a: jax.make_array_from_callback(
            a.shape, a.sharding, lambda part: np.zeros(a.shape, a.dtype)[part]
        )

        def made(arguments: StepArguments) -> TrainState:
            state = rest(arguments)
            momentum = jax.tree.map(zeros, self.layout.abstract_state(self.mesh).optimizer[OUTER_MOMENTUM])
            return state._replace(master=weights(arguments), optimizer={**state.optimizer, OUTER_MOMENTUM: momentum})

        return made

    def placing(self, step: CompiledStep) -> CompiledStep:
        @wraps(step)
        def placed(state: TrainState, *rest: PyTree) -> PyTree:  # shapes alone do not say in which memory an array is
            return step(with_outer_state(state, to_host), *rest)

        return placed

"""Faults of mixers with a state."""

from tests.faults.fault import Fault

RECURRENCE = "jaxpar/layers/linear_attention/recurrence.py"
GRADIENTS = (
    "tests/layers/linear_attention/test_mixers.py::"
    "test_loss_and_gradients_equal_a_recurrence_in_float64[mamba2-context and tensor]"
)
TRANSPORTS = (
    "tests/layers/linear_attention/test_transports.py::"
    "test_loss_and_gradients_equal_a_recurrence_in_float64[pipelined-context4-gated_deltanet]"
)

HYBRIDS = (
    Fault("a_state_that_crosses_documents", "Tokens of the next document read the state of the one before.", RECURRENCE,
        old="since = jnp.where(continues, jnp.exp(decayed), 0)",
        new="since = jnp.exp(decayed) + 0 * continues",
        caught_by=(GRADIENTS,)),
    Fault("a_ranks_state_that_does_not_decay",
        "The state of the ranks before passes a context rank as if that had no tokens.",
        "jaxpar/layers/linear_attention/transports.py",
        old="rows = fold.mapped[..., None] * state if fold.mapped.ndim < state.ndim else fold.mapped @ state",
        new="rows = state",
        caught_by=(GRADIENTS,)),
    Fault("a_gradient_of_a_state_that_passes_ranks_forward",
        "The gradient of the state behind a context rank's tokens is mapped as a state is.",
        "jaxpar/layers/linear_attention/transports.py",
        old="mapped=fold.mapped.swapaxes(-1, -2)",
        new="mapped=fold.mapped",
        caught_by=(TRANSPORTS,)),
    Fault("a_halo_off_by_one", "A short convolution gets the tokens before the last ones of the rank before.",
        "jaxpar/layers/linear_attention/convolution.py",
        old="shift_context(x[:, -reach:], 1, wrap=False)",
        new="shift_context(x[:, -reach - 1 : -1], 1, wrap=False)",
        caught_by=(GRADIENTS,)),
)  # fmt: skip

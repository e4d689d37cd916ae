"""As much of lm-evaluation-harness as `jaxpar.evaluation.harness` needs to be imported; it is too large to install."""

"""Kernels, the masks they share and their plain-JAX references. Imports nothing from jaxpar."""

"""The first contact of the kernels with a GPU: from one tile to the whole grid of cases, then records and speeds."""

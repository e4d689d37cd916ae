"""Any number of runs as an HTML page, for `python -m jaxpar.report`. Reads only files and imports no JAX."""

"""One or two runs as an HTML page: what `python -m jaxpar.report` writes. Reads files alone and imports no JAX."""

"""Documents of a token folder in clusters: `python -m jaxpar.prepare --clusters K`. See `docs/paris.md`."""

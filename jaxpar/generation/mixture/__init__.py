"""A mixture of models: each token's probabilities are those of all models, weighted by a router. See `docs/paris.md`."""

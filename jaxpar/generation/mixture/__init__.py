"""A mixture of models: the probabilities of each token are those of all models, weighted by a router."""

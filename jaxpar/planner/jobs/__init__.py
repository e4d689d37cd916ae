"""Training jobs that share a cluster: how many GPUs each gets, and when."""

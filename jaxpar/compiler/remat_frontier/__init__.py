"""`--remat-frontier`: bytes against time over what layers could keep on a cluster, without compiling."""

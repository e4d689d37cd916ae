"""Linear attention kernels for Hopper GPUs, in Pallas Mosaic GPU: a warpgroup takes a state through all chunks."""

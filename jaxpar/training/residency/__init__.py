"""Where master weights and moments are stored between steps: on the device, in host memory, or on disk.

Each is one file with a class (`protocol.Residency`) and its entry in `registry.py`, by the value of
`memory.optimizer_offload`.
"""

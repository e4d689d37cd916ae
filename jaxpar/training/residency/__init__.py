"""Optimizer-state placement, where master weights and moments are stored between steps: on the device, in host memory,
or on disk.

Each is one file with a class, a subclass of `on_device.OnDevice`, and its entry in `RESIDENCIES`
(`jaxpar.training.step.train_step`).
"""

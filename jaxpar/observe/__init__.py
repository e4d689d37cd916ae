"""What a run tells: the console, metric files, TensorBoard, plots, profiles, memory and time.

The trainer calls a `Listener`; everything that writes is one (`events.py` says how to add another).
"""

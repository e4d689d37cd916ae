"""Writers of metrics: the screen, files, TensorBoard, Weights & Biases, plots."""

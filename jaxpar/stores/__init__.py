"""Where the weights of layers come from in a step and where their gradients go: a file for each way."""

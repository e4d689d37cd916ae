"""One command for one GPU: are kernels right, how fast are they beside others, what does memory allow, and a step."""

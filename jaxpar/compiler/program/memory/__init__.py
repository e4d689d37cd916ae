"""Memory of the program: XLA's buffers, what is live when, and the op that made it."""

"""Rewards of answers: those that come with jaxpar, and the processes in which they are computed."""

"""The Pareto frontier of bytes against time over what layers could keep on a cluster, without compiling."""

from jaxpar.compiler.remat_frontier.frontier import make_frontier
from jaxpar.compiler.remat_frontier.record import FrontierPoint, RematFrontier

__all__ = ["FrontierPoint", "RematFrontier", "make_frontier"]

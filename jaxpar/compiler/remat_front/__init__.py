"""Bytes against time: what a configuration's layers could keep on a cluster, without compiling anything."""

from jaxpar.compiler.remat_front.front import make_front
from jaxpar.compiler.remat_front.record import FrontPoint, RematFront

__all__ = ["FrontPoint", "RematFront", "make_front"]

"""Islands without a model: a few arrays, which a test changes as inner steps would."""

from pathlib import Path
from typing import Any

import numpy as np

from jaxpar.config.mappings.outer import OuterConfig
from jaxpar.config.schema.islands import IslandsConfig
from jaxpar.training.island_jobs.exchange import Exchange
from jaxpar.training.island_jobs.island import Island
from jaxpar.training.island_jobs.local_weights import Parts
from jaxpar.training.island_jobs.records import Closed
from jaxpar.training.island_jobs.tensor_parts import Part

SHAPES = {"up": (4, 6), "scale": (5,)}
OUTER = OuterConfig(0.7, 0.9, nesterov=True)
MODEL = "the model"


def parts_of(arrays: dict[str, np.ndarray], columns: int = 1) -> Parts:
    """Float32 arrays as parts, matrices in blocks of columns, as a mesh would split them."""
    parts: Parts = {}
    for name, array in arrays.items():
        pieces = columns if array.ndim > 1 else 1
        for index, piece in enumerate(np.split(array.astype(np.float32), pieces, axis=-1)):
            starts = (0,) * (array.ndim - 1) + (index * piece.shape[-1],)
            parts[Part(name, starts, piece.shape)] = np.array(piece)
    return parts


def full_arrays(parts: Parts) -> dict[str, np.ndarray]:
    """The arrays of which these are all parts."""
    arrays = {name: np.full(shape, np.nan, np.float32) for name, shape in SHAPES.items()}
    for part, piece in parts.items():
        arrays[part.name][part.within(Part(part.name, (0,) * piece.ndim, arrays[part.name].shape))] = piece
    return arrays


class Trained:
    """An island and its weights; each has a local mesh."""

    def __init__(self, folder: Path, name: str, columns: int = 1, **config: Any):
        keys = {"every": 4, "folder": str(folder), "outer": OUTER, "wait_s": 0.0} | config
        self.said: list[str] = []
        self.columns = columns
        self.island = Island(Exchange(folder, name), IslandsConfig(**keys), MODEL, self.said.append)
        self.draw = np.random.default_rng(list(name.encode()))
        first = np.random.default_rng(7)
        self.island.start(parts_of({n: first.normal(size=s) for n, s in SHAPES.items()}, columns), self._all())
        self.arrays = full_arrays(self.island.shared)

    def _all(self) -> list[Part]:
        return list(parts_of({name: np.zeros(shape) for name, shape in SHAPES.items()}, self.columns))

    def train(self) -> None:
        """Steps of the optimizer."""
        self.island.begin()
        self.arrays = {name: array + self.draw.normal(size=array.shape) for name, array in self.arrays.items()}

    def contribute(self) -> None:
        self.island.contribute(parts_of(self.arrays, self.columns), self._all(), 4, 64)

    def advance(self) -> Closed:
        closed = self.island.settle(lambda: False)
        assert closed is not None, "nobody asked to stop"
        self.island.advance(closed, self._all())
        self.arrays = full_arrays(self.island.shared)
        return closed

    def waits(self) -> list[str]:
        """The messages of an island that waits, and is asked to stop after two looks into the folder."""
        looks, said = iter((False, True)), len(self.said)
        assert self.island.settle(lambda: next(looks)) is None
        return self.said[said:]


def contributed(folder: Path, names: str, **config: Any) -> list[Trained]:
    """Islands that have trained, and contributed to a round that is open."""
    islands = [Trained(folder, name, **config) for name in names]
    for one in islands:
        one.train()
        one.contribute()
    return islands


def round_of(*islands: Trained) -> Closed:
    """A round in which all of them take part, the first of them closing it."""
    for one in islands:
        one.train()
    for one in islands:
        one.contribute()
    closed = [one.advance() for one in islands]
    return closed[0]

"""Prices of GPUs and of energy: a number, or a YAML file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from jaxpar.config import UserError
from jaxpar.config.reading.yaml_file import read_record
from jaxpar.config.spelling import did_you_mean, named, quoted
from jaxpar.hardware.catalogue import GPU, GPUS
from jaxpar.layout.plan_file import LARGEST_NUMBER


@dataclass(frozen=True)
class Prices:
    """The keys of a file of prices; money in any currency."""

    gpu_hour: dict[str, float] = field(default_factory=dict)
    """Price of one GPU, by its short name, as in `{h100: 2.5}`."""
    kwh: float = 0.0
    """Price of energy, where it is not part of the price of a GPU."""
    overhead: float = 1.0
    """Energy of the site for each kWh of its GPUs: hosts, network, cooling."""

    def words(self, gpu: GPU) -> str:
        """`2.5 a GPU-hour, 0.12 a kWh (1.25 for each of the GPUs)`."""
        energy = f", {self.kwh:g} a kWh ({self.overhead:g} for each of the GPUs)" if self.kwh else ""
        return f"{self.gpu_hour[gpu.short]:g} a GPU-hour{energy}"

    def of(self, gpu: GPU, hours: float, kwh: float | None) -> float:
        """Hours of a GPU, and the energy of GPUs where it is known."""
        return self.gpu_hour[gpu.short] * hours + self.kwh * self.overhead * (kwh or 0.0)


def read_prices(text: str, gpu: GPU) -> Prices:
    """`--price`: the price of a GPU-hour, or a YAML file that has the GPU's.

    Raises:
        UserError: neither, a number that is not above 0, or a file without this GPU.
    """
    if not text.endswith((".yaml", ".yml")):
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not 0 < number <= LARGEST_NUMBER:
            raise UserError(
                f"--price {quoted(text)}: expected the price of a GPU-hour above 0, at most {LARGEST_NUMBER:g}, or a "
                ".yaml file of prices"
            )
        return Prices({gpu.short: number})
    path = Path(text)
    written, lines = read_record(Prices, path)
    place = lambda key: f"{named(path)}:{lines[key]}: {key}"
    known = [one.short for one in GPUS]
    for name, price in written.gpu_hour.items():
        if name not in known:
            raise UserError(f"{place('gpu_hour')}: there is no GPU {quoted(name)}{did_you_mean(name, known)}")
        if not 0 < price <= LARGEST_NUMBER:
            raise UserError(f"{place('gpu_hour')}.{name}: expected a number above 0, got {price:g}")
    if not 0 <= written.kwh <= LARGEST_NUMBER:
        raise UserError(f"{place('kwh')}: expected a number of at least 0, got {written.kwh:g}")
    if not 1 <= written.overhead <= 10:
        raise UserError(f"{place('overhead')}: expected a number from 1 to 10, got {written.overhead:g}")
    if gpu.short not in written.gpu_hour:
        raise UserError(f"{named(path)}: gpu_hour: the price of {gpu.short} is missing")
    return written
